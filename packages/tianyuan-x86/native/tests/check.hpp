// Just enough to state a test: CHECK stops the program with the place and the text that failed.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

#define RUN(test)               \
  do {                          \
    std::printf("%s\n", #test); \
    std::fflush(stdout);        \
    test();                     \
  } while (false)
