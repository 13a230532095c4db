# Configures and builds the native library in its lasting folder, one build at a time.
#   PROJECT: the package's folder. CACHE: empty, or a folder outside of it that several copies of the
#   package (unpacked sdists) share. BINARY: where the library is built.

# Makes `to` hold what `from` holds; a file that did not change keeps its time, so that ninja finds
# its object fresh.
function(mirror from to)
  file(GLOB_RECURSE wanted RELATIVE "${from}" "${from}/*")
  file(GLOB_RECURSE present RELATIVE "${to}" "${to}/*")
  foreach(path IN LISTS wanted)
    get_filename_component(folder "${to}/${path}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    file(COPY_FILE "${from}/${path}" "${to}/${path}" ONLY_IF_DIFFERENT)
  endforeach()
  foreach(path IN LISTS present)
    if(NOT path IN_LIST wanted)
      file(REMOVE "${to}/${path}")
    endif()
  endforeach()
endfunction()

cmake_policy(SET CMP0057 NEW)
file(MAKE_DIRECTORY "${BINARY}")
file(LOCK "${BINARY}" DIRECTORY GUARD PROCESS TIMEOUT 3000)

set(SOURCE "${PROJECT}/native")
if(CACHE)
  get_filename_component(headers "${PROJECT}/include" REALPATH)
  mirror("${headers}" "${CACHE}/source/include")
  mirror("${SOURCE}" "${CACHE}/source/native")
  set(SOURCE "${CACHE}/source/native")
endif()

execute_process(
  COMMAND
    ${CMAKE_COMMAND} -S "${SOURCE}" -B "${BINARY}" -G "${GENERATOR}"
    "-DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
    -U TIANYUAN_TIERS  # a folder of an earlier version knows fewer
    -DCMAKE_BUILD_TYPE=Release -DTIANYUAN_SANITIZE= -DTIANYUAN_TESTS=OFF -DTIANYUAN_EMULATE_TILES=OFF
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build "${BINARY}" --target tianyuan_x86
                COMMAND_ERROR_IS_FATAL ANY)
