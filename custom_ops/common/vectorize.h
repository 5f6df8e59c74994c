// Run-time choice of vector width: one library runs on any x86-64 machine, and uses AVX2 or AVX-512 where the processor
// has them. Other architectures compile one version, as ARM, where every processor of 64 bits has NEON.
#pragma once

// The highest level of x86-64 that kernels have code for; 5 is level 4 and AMX. A library built with a lower level runs
// the code of older processors on a newer one: so tests reach these paths.
#ifndef TFXC_LEVEL
#define TFXC_LEVEL 5
#endif

// GCC 11 cannot choose by level. It makes code for AVX2 beside the default, without fused multiplication and addition.
// Apple's libraries cannot choose a function when they are loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__APPLE__) && TFXC_LEVEL >= 3
#if __GNUC__ >= 12 || defined(__clang__)
#define TFXC_HAS_LEVELS TFXC_LEVEL
#define TFXC_LEVEL_3 "arch=x86-64-v3"
#else
#define TFXC_HAS_LEVELS 3
#define TFXC_LEVEL_3 "avx2"
#endif
#else
#define TFXC_HAS_LEVELS 0
#endif

// Whether functions may have a version with the instructions of AVX2, beside one for any processor.
#if TFXC_HAS_LEVELS >= 3
#define TFXC_AVX2 __attribute__((target("avx2")))
#define TFXC_NO_AVX2 __attribute__((target("default")))
#else
#define TFXC_NO_AVX2
#endif

// TFXC_VECTORIZE: the compiler vectorises the loops, as wide as the processor allows. TFXC_WIDE and TFXC_NARROW: the
// kernel's own vectors, of sixteen floats or of NarrowLanes.
#if TFXC_HAS_LEVELS >= 4
#define TFXC_VECTORIZE __attribute__((target_clones("arch=x86-64-v4", TFXC_LEVEL_3, "default")))
#define TFXC_WIDE __attribute__((target("arch=x86-64-v4")))
#elif TFXC_HAS_LEVELS == 3
#define TFXC_VECTORIZE __attribute__((target_clones(TFXC_LEVEL_3, "default")))
#else
#define TFXC_VECTORIZE
#endif
#if TFXC_HAS_LEVELS >= 3
#define TFXC_NARROW __attribute__((target_clones(TFXC_LEVEL_3, "default")))
#else
#define TFXC_NARROW
#endif

// Defines NAME from a template NAME##Of of the vectors, for both widths; a call takes that of the processor.
#ifdef TFXC_WIDE
#define TFXC_BY_WIDTH(RESULT, NAME, PARAMETERS, ARGUMENTS)                                             \
  TFXC_WIDE static RESULT NAME##Wide PARAMETERS { return NAME##Of<::tfxc::Lanes16> ARGUMENTS; }        \
  TFXC_NARROW static RESULT NAME##Narrow PARAMETERS { return NAME##Of<::tfxc::NarrowLanes> ARGUMENTS; }\
  RESULT NAME PARAMETERS { return ::tfxc::HasWideRegisters() ? NAME##Wide ARGUMENTS : NAME##Narrow ARGUMENTS; }
#else
#define TFXC_BY_WIDTH(RESULT, NAME, PARAMETERS, ARGUMENTS) \
  TFXC_NARROW RESULT NAME PARAMETERS { return NAME##Of<::tfxc::NarrowLanes> ARGUMENTS; }
#endif

namespace tfxc {

// Thirty-two registers of sixteen floats. Otherwise there are sixteen of eight, or on ARM thirty-two of four.
inline bool HasWideRegisters() {
#if defined(TFXC_WIDE) && defined(__clang__)  // it does not know the level here
  return __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#elif defined(TFXC_WIDE)
  return __builtin_cpu_supports("x86-64-v4");
#else
  return false;
#endif
}

}  // namespace tfxc
