// What the kernels of this folder take from PTX: barriers, tensor-map copies, asynchronous matrix products (sm_90a).
//
// The products themselves, one function for each width, are written out by products.py.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__

struct alignas(64) TensorMap {
    u64 words[16];
};

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Barriers in shared memory. A phase ends when all arrivals and all announced bytes are there.
DEVICE void barrier_init(u32 bar, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// A warp arrives by its first lane, after what its lanes did up to the last point where they met. EVERY_LANE: each lane arrives
// for itself, for a checker of races that counts only what the arriving lane did before. Macros, for a function moves instructions.
#if EVERY_LANE
#define ARRIVES true
#define ARRIVALS 32
#else
#define ARRIVES lane == 0
#define ARRIVALS 1
#endif
DEVICE void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u32 bar, u32 phase) {
    u32 done;
    do {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(bar), "r"(phase)
            : "memory");
    } while (!done);
}

// Barriers by number, among some of the block's warps.
template <int ID, int THREADS> DEVICE void sync_some() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
DEVICE void sync_some(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void arrive_some(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int REGISTERS> DEVICE void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> DEVICE void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// A box of a tensor map into shared memory, with the map's swizzle; what lies outside the tensor becomes zero.
DEVICE void copy_box(u32 to, const TensorMap *map, u32 bar, int c0, int c1, int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
        ::"r"(to), "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}
// The same of a tensor whose lines leave the L2 cache last, where others go through it that are read once.
DEVICE void copy_kept(u32 to, const TensorMap *map, u32 bar, int c0, int c1, int c2, int c3) {
    u64 last;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
        ::"r"(to), "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(last)
        : "memory");
}
DEVICE void copy_kept(u32 to, const TensorMap *map, u32 bar, int c0, int c1, int c2, int c3, int c4) {
    u64 last;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
        ::"r"(to), "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(last)
        : "memory");
}
DEVICE void prefetch_map(const TensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
DEVICE void prefetch_line(const void *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
DEVICE void copy_bytes(u32 to, const void *from, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
// Adds a box of floats in shared memory to a tensor map's; what lies outside the tensor is left out.
DEVICE void add_box(const TensorMap *map, u32 from, int c0, int c1, int c2, int c3) {
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 ::"l"(map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}
// Stores a box in shared memory to a tensor map's tensor, whose lines leave the L2 cache first: nothing reads them soon.
DEVICE void put_box(const TensorMap *map, u32 from, int c0, int c1, int c2, int c3) {
    u64 first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;"
                 ::"l"(map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(first)
                 : "memory");
}
DEVICE void put_box(const TensorMap *map, u32 from, int c0, int c1, int c2, int c3, int c4) {
    u64 first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5, %6}], [%1], %7;"
                 ::"l"(map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(first)
                 : "memory");
}
// Stores to global memory where `inside`, of what is read once: no branch keeps other instructions from running beside them.
DEVICE void put_four(void *to, const u32 (&x)[4], bool inside) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};\n}"
                 ::"l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"((u32)inside)
                 : "memory");
}
DEVICE void put_two(void *to, float x, float y, bool inside) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p st.global.cs.v2.f32 [%0], {%1, %2};\n}"
                 ::"l"(to), "f"(x), "f"(y), "r"((u32)inside)
                 : "memory");
}
DEVICE void put_close() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void add_two(float *to, float x, float y) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
DEVICE void add_four(float *to, float x, float y, float z, float w) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
DEVICE void put_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEVICE void put_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Ordinary stores to shared memory before, copies and products that read it after.
DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_close() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int OPEN> DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory"); }

// What follows waits for `x`, which is never negative: the assembler would put the wait for products before independent work
// that is to run beside them.
DEVICE void after(float x) {
    if (__any_sync(~0u, x < 0.f)) asm volatile("trap;");
}

// A matrix operand in shared memory, rows of 128 bytes swizzled by 128. `leading`: bytes from one 64 columns to the next,
// read only where the operand lies across (its long side is not the one summed over). `apart`: bytes from 8 rows to the next.
DEVICE u64 operand(u32 address, u32 leading, u32 apart = 1024) {
    return ((u64)1 << 62) | ((u64)(apart >> 4) << 32) | ((u64)(leading >> 4) << 16) | ((address & 0x3ffff) >> 4);
}
// A further row of operands in shared memory, by bytes.
DEVICE u64 further(u64 operand, u32 bytes) { return operand + (bytes >> 4); }

DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
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
// The elements of a pair as floats.
DEVICE float low_of(u32 x) {
#if HALF
    float y;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, l;\n}" : "=f"(y) : "r"(x));
    return y;
#else
    return __uint_as_float(x << 16);
#endif
}
DEVICE float high_of(u32 x) {
#if HALF
    return low_of(x >> 16);
#else
    return __uint_as_float(x & 0xffff0000u);
#endif
}
DEVICE void store_matrices_transposed(u32 to, const u32 (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}
DEVICE void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
// Who tells a copy that it may write there waits for what takes the registers: an arrival alone may be seen before loads are done.
DEVICE void load_matrices(u32 (&r)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
DEVICE float2 load_two(u32 from) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from));
    return x;
}
DEVICE void store_one(u32 to, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory"); }
DEVICE void store_two(u32 to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
DEVICE void store_zeros(u32 to) { asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory"); }
DEVICE float load_one(u32 from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
    return x;
}
DEVICE u32 load_word(u32 from) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}
DEVICE void store_word(u32 to, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }
DEVICE u64 load_long(u32 from) {
    u64 x;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(from) : "memory");
    return x;
}
DEVICE void store_long(u32 to, u64 x) { asm volatile("st.shared.u64 [%0], %1;" ::"r"(to), "l"(x) : "memory"); }
DEVICE void store_four(u32 to, float x, float y, float z, float w) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
DEVICE void load_four(u32 from, float &x, float &y, float &z, float &w) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(from));
}
