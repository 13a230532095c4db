/* Measures how many float32 operations per second one thread does on independent accumulators:
 * prints the peaks of 256-bit and, where the compiler targets them, 512-bit multiply-adds. */
#include <immintrin.h>
#include <stdio.h>
#include <time.h>

/* Named scalars, so that no accumulator lives in memory. */
#define EACH(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
enum { ROUNDS = 400000, REPEATS = 12 };

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double narrow(void) {
  const __m256 m = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(1e-3f);
#define BEGIN(i) __m256 a##i = _mm256_set1_ps(i);
#define STEP(i)                       \
  a##i = _mm256_fmadd_ps(a##i, m, c); \
  __asm__ volatile("" : "+v"(a##i));
  EACH(BEGIN)
  const double start = seconds();
  for (int round = 0; round < ROUNDS; ++round) {
    EACH(STEP)
  }
  return 12.0 * 16 * ROUNDS / (seconds() - start);
#undef BEGIN
#undef STEP
}

#ifdef __AVX512F__
static double wide(void) {
  const __m512 m = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(1e-3f);
#define BEGIN(i) __m512 a##i = _mm512_set1_ps(i);
#define STEP(i)                       \
  a##i = _mm512_fmadd_ps(a##i, m, c); \
  __asm__ volatile("" : "+v"(a##i));
  EACH(BEGIN)
  const double start = seconds();
  for (int round = 0; round < ROUNDS; ++round) {
    EACH(STEP)
  }
  return 12.0 * 32 * ROUNDS / (seconds() - start);
}
#endif

static double best(double (*run)(void)) {
  double found = 0;
  for (int i = 0; i < REPEATS; ++i) {
    const double rate = run();
    if (rate > found) found = rate;
  }
  return found;
}

int main(void) {
  printf("avx2 %.1f\n", best(narrow) / 1e9);
#ifdef __AVX512F__
  printf("avx512 %.1f\n", best(wide) / 1e9);
#endif
  return 0;
}
