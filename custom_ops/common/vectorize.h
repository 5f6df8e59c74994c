// Run-time choice of vector width: one library runs on any x86-64 machine and uses
// AVX2 or AVX-512 where the processor has them. Other architectures compile as they are.
#ifndef TFXC_COMMON_VECTORIZE_H_
#define TFXC_COMMON_VECTORIZE_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TFXC_VECTORIZE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TFXC_VECTORIZE
#endif

#endif  // TFXC_COMMON_VECTORIZE_H_
