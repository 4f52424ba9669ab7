// What the decode step asks of the processor, one function for each PTX instruction or small group of them.
//
// The tests put functions of the same names in their place, which do the same on a CPU; so nothing but this
// file may hold assembly or built-in variables.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define RARELY static __device__ __noinline__
#define INFINITY __int_as_float(0x7f800000)

extern __shared__ __align__(1024) unsigned char shared[];

DEVICE int thread_index() { return threadIdx.x; }
DEVICE int cluster_index() { return blockIdx.x / P; }
DEVICE int cluster_rank() { return blockIdx.x % P; }

DEVICE void sync_warp() { __syncwarp(); }
DEVICE void sync_block() { __syncthreads(); }
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Of programmatic dependent launch: the next kernel may be placed; wait for the one before and what it wrote.
DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE int shuffle_xor(int x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE u64 shuffle_xor(u64 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float log2_of(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE u32 bits_of(float x) { return __float_as_uint(x); }

// Two floats as elements, the first in the low half.
DEVICE u32 pack(float low, float high) {
    u32 x;
#if HALF
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
#endif
    return x;
}
DEVICE float unpack(u16 x) {
#if HALF
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
#else
    return __uint_as_float((u32)x << 16);
#endif
}

// Shared memory by its byte offset.
DEVICE u32 shared_address(int offset) { return (u32)__cvta_generic_to_shared(shared) + offset; }

// Of what copies brought: their order with ordinary reads and writes is kept by sync_warp alone.
DEVICE void load_matrices(u32 (&r)[4], int offset) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(offset)));
}
DEVICE void load_matrices_transposed(u32 (&r)[4], int offset) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(offset)));
}
DEVICE u32 transpose(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if HALF
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Sixteen bytes of global memory into shared memory, or zeros, and then nothing is read; they are there once their group
// is waited for. The first to leave the L2 cache: a step reads more of a cache than it holds, and each row once.
DEVICE void copy_later(int offset, const void *from, bool there) {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
                 :: "r"(shared_address(offset)), "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0), "l"(policy)
                 : "memory");
}
DEVICE void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int OPEN> DEVICE void wait_group() { asm volatile("cp.async.wait_group %0;" :: "n"(OPEN) : "memory"); }

// Stores into the shared memory of a block of the cluster; seen after the cluster's next barrier.
DEVICE u32 remote_address(int offset, int rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(offset)), "r"(rank));
    return there;
}
DEVICE void store_remote(int offset, int rank, float x) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(remote_address(offset, rank)), "f"(x) : "memory");
}
DEVICE void store_remote(int offset, int rank, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};"
                 :: "r"(remote_address(offset, rank)), "f"(x), "f"(y) : "memory");
}
DEVICE void store_remote(int offset, int rank, u64 x) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" :: "r"(remote_address(offset, rank)), "l"(x) : "memory");
}

struct alignas(16) Sixteen { u32 x, y, z, w; };
struct alignas(16) Two { u64 x, y; };
struct alignas(8) Eight { u32 x, y; };
