# Configures and builds the native library in its lasting folder, one build at a time.
file(MAKE_DIRECTORY "${BINARY}")
file(LOCK "${BINARY}" DIRECTORY GUARD PROCESS TIMEOUT 3000)

execute_process(
  COMMAND
    ${CMAKE_COMMAND} -S "${SOURCE}" -B "${BINARY}" -G "${GENERATOR}"
    "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    -DCMAKE_BUILD_TYPE=Release -DTIANYUAN_SANITIZE= -DTIANYUAN_TESTS=OFF
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build "${BINARY}" --target tianyuan_x86
                COMMAND_ERROR_IS_FATAL ANY)
