// Run-time choice of vector width: one library runs on any x86-64 machine and uses
// AVX2 or AVX-512 where the processor has them. Other architectures compile as they are.
#ifndef TFXC_COMMON_VECTORIZE_H_
#define TFXC_COMMON_VECTORIZE_H_

// The highest level of x86-64 that kernels have code for. A library built with a lower one runs, on a processor that
// has more, what older processors run: that is how these paths are tested.
#ifndef TFXC_LEVEL
#define TFXC_LEVEL 4
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && TFXC_LEVEL >= 4
#define TFXC_VECTORIZE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && TFXC_LEVEL == 3
#define TFXC_VECTORIZE __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define TFXC_VECTORIZE
#endif

#endif  // TFXC_COMMON_VECTORIZE_H_
