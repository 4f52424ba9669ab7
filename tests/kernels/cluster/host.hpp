// The functions of gpu.cuh on a CPU: every thread of a cluster is a fiber, and a fiber runs until it must wait.
//
// Two worlds, by `late`: copies and stores into other blocks happen as late as they may (when they are waited for, and at
// the next arrival at the cluster's barrier), or at once. A missing wait shows in the first, memory that is used
// again too early in the second. The order of the fibers is drawn anew in each round.
//
// A fiber begins by setcontext on a stack of its own. From then on it is left and entered by _setjmp and _longjmp, which
// unlike swapcontext ask nothing of the system (an order to the compiler to check longjmp, _FORTIFY_SOURCE, has to be
// off: it takes another stack for a broken one).

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <setjmp.h>
#include <ucontext.h>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct float2 { float x, y; };
struct alignas(16) Sixteen { u32 x, y, z, w; };
struct alignas(16) Two { u64 x, y; };
struct alignas(8) Eight { u32 x, y; };
using std::max;
using std::min;

#define DEVICE inline
#define RARELY inline
#define __global__
#define __cluster_dims__(...)
#define __launch_bounds__(...)
#define __grid_constant__

namespace host {

constexpr int BLOCK = 256;

struct Barrier {
    int size = 0, arrived = 0, phase = 0;
};
struct Warp {
    Barrier barrier;
    unsigned char slots[2][32][64];
};
struct Block {
    std::vector<unsigned char> memory;
    Barrier barrier;
    Warp warps[BLOCK / 32];
};
// A copy or a store that has yet to happen: `bytes` of `value`, or from memory where it says so.
struct Later {
    unsigned char *to;
    const void *from;
    int bytes;
    unsigned char value[16];
    void happen() const { std::memcpy(to, from ? from : value, bytes); }
};
struct Fiber {
    ucontext_t context;
    jmp_buf here;
    const Barrier *waits = nullptr;  // for this one to leave the phase `waited`
    int waited = 0;
    int thread = 0, rank = 0, parity = 0, phase = 0;
    bool begun = false, done = false;
    std::vector<Later> open, stores;
    std::vector<std::vector<Later>> groups;
};
struct World {
    std::vector<Block> blocks;
    std::vector<Fiber> fibers;
    Barrier barrier;
    jmp_buf scheduler;
    Fiber *now = nullptr;
    bool late = false, moved = false;
    int cluster = 0;
    std::vector<std::pair<const char *, const char *>> readable;
};
inline World world;

inline void fail(const char *why) {
    std::fprintf(stderr, "rank %d thread %d: %s\n", world.now->rank, world.now->thread, why);
    std::abort();
}
inline Block &block(int rank = -1) { return world.blocks[rank < 0 ? world.now->rank : rank]; }
inline Warp &warp() { return block().warps[world.now->thread / 32]; }
inline void yield() {
    if (!_setjmp(world.now->here)) _longjmp(world.scheduler, 1);
}
inline void resume(Fiber &fiber) {
    world.now = &fiber;
    if (_setjmp(world.scheduler)) return;
    if (fiber.begun) _longjmp(fiber.here, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
}
// Whether there is nothing to do for it: it would look at the barrier and wait on.
inline bool rests(const Fiber &fiber) { return fiber.done || (fiber.waits && fiber.waits->phase == fiber.waited); }
inline int arrive(Barrier &b) {
    const int phase = b.phase;
    if (++b.arrived == b.size) b.arrived = 0, b.phase++;
    world.moved = true;
    return phase;
}
inline void wait(Barrier &b, int phase) {
    if (b.phase != phase) return;
    world.now->waits = &b;
    world.now->waited = phase;
    yield();
}
inline void check_shared(int offset, int bytes) {
    if (offset < 0 || offset + bytes > (int)block().memory.size() || offset % bytes) fail("shared memory out of bounds");
}
// What every lane of the warp gives, to every lane.
template <class T> const T *exchange(const T &mine) {
    static_assert(sizeof(T) <= 64, "slot");
    const int parity = world.now->parity ^= 1, lane = world.now->thread % 32;
    std::memcpy(warp().slots[parity][lane], &mine, sizeof(T));
    wait(warp().barrier, arrive(warp().barrier));
    static T all[32];
    for (int i = 0; i < 32; i++) std::memcpy(&all[i], warp().slots[parity][i], sizeof(T));
    return all;
}

}  // namespace host

#define shared (host::block().memory.data())

DEVICE int thread_index() { return host::world.now->thread; }
DEVICE int cluster_index() { return host::world.cluster; }
DEVICE int cluster_rank() { return host::world.now->rank; }

DEVICE void sync_warp() { host::exchange(0); }
DEVICE void sync_block() { host::wait(host::block().barrier, host::arrive(host::block().barrier)); }
DEVICE void cluster_arrive() {
    for (auto &store : host::world.now->stores) store.happen();
    host::world.now->stores.clear();
    host::world.now->phase = host::arrive(host::world.barrier);
}
DEVICE void cluster_wait() { host::wait(host::world.barrier, host::world.now->phase); }

DEVICE void let_next_begin() {}
DEVICE void wait_for_previous() {}

DEVICE int shuffle_xor(int x, int mask) { return host::exchange(x)[thread_index() % 32 ^ mask]; }
DEVICE u64 shuffle_xor(u64 x, int mask) { return host::exchange(x)[thread_index() % 32 ^ mask]; }
DEVICE float shuffle_xor(float x, int mask) { return host::exchange(x)[thread_index() % 32 ^ mask]; }
DEVICE float exp2_of(float x) { return std::exp2(x); }
DEVICE float log2_of(float x) { return std::log2(x); }
DEVICE u32 bits_of(float x) {
    u32 y;
    std::memcpy(&y, &x, 4);
    return y;
}
DEVICE float float_of(u32 x) {
    float y;
    std::memcpy(&y, &x, 4);
    return y;
}
DEVICE u16 round_to_bfloat16(float x) {
    const u32 y = bits_of(x);
    return (y & 0x7fffffff) > 0x7f800000 ? 0x7fff : (u16)((y + 0x7fff + (y >> 16 & 1)) >> 16);
}
DEVICE u32 pack(float low, float high) { return round_to_bfloat16(low) | (u32)round_to_bfloat16(high) << 16; }
DEVICE float unpack(u16 x) { return float_of((u32)x << 16); }

DEVICE void load_matrices(u32 (&r)[4], int offset) {
    host::check_shared(offset, 16);
    const int *rows = host::exchange(offset), lane = thread_index() % 32;
    for (int i = 0; i < 4; i++) std::memcpy(&r[i], shared + rows[8 * i + lane / 4] + lane % 4 * 4, 4);
}
DEVICE void load_matrices_transposed(u32 (&r)[4], int offset) {
    host::check_shared(offset, 16);
    const int *rows = host::exchange(offset), lane = thread_index() % 32;
    for (int i = 0; i < 4; i++) {
        u16 x[2];
        for (int j = 0; j < 2; j++) std::memcpy(&x[j], shared + rows[8 * i + lane % 4 * 2 + j] + lane / 4 * 2, 2);
        r[i] = x[0] | (u32)x[1] << 16;
    }
}
DEVICE u32 transpose(u32 x) {
    const int lane = thread_index() % 32;
    const u32 *all = host::exchange(x);
    u32 y = 0;
    for (int j = 0; j < 2; j++) {
        const u32 from = all[(lane % 4 * 2 + j) * 4 + lane / 8];
        y |= (lane / 4 % 2 ? from >> 16 : from & 0xffff) << (16 * j);
    }
    return y;
}
DEVICE void multiply_add(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    struct Both { u32 a[4], b[2]; } mine;
    std::memcpy(mine.a, a, 16);
    std::memcpy(mine.b, b, 8);
    const Both *all = host::exchange(mine);
    const int lane = thread_index() % 32;
    const auto half = [](u32 x, int i) { return unpack((u16)(x >> (16 * i))); };
    for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            const float x = half(all[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2);
            c[i] += x * half(all[column * 4 + k % 8 / 2].b[k / 8], k % 2);
        }
    }
}

DEVICE void copy_later(int offset, const void *from, bool there) {
    host::check_shared(offset, 16);
    const char *p = static_cast<const char *>(from);
    if (there && std::none_of(host::world.readable.begin(), host::world.readable.end(),
                              [&](auto &r) { return p >= r.first && p + 16 <= r.second; }))
        host::fail("global memory out of bounds");
    unsigned char *to = shared + offset;
    const host::Later copy{to, there ? p : nullptr, 16, {}};
    if (host::world.late) host::world.now->open.push_back(copy);
    else copy.happen();
}
DEVICE void close_group() {
    host::world.now->groups.push_back(std::move(host::world.now->open));
    host::world.now->open.clear();
}
template <int OPEN> DEVICE void wait_group() {
    auto &groups = host::world.now->groups;
    for (; (int)groups.size() > OPEN; groups.erase(groups.begin()))
        for (auto &copy : groups.front()) copy.happen();
}

template <class T> DEVICE void store_there(int offset, int rank, T x) {
    host::check_shared(offset, sizeof(T));
    unsigned char *to = host::block(rank).memory.data() + offset;
    host::Later store{to, nullptr, sizeof(T), {}};
    std::memcpy(store.value, &x, sizeof(T));
    if (host::world.late) host::world.now->stores.push_back(store);
    else store.happen();
}
DEVICE void store_remote(int offset, int rank, float x) { store_there(offset, rank, x); }
DEVICE void store_remote(int offset, int rank, float x, float y) { store_there(offset, rank, float2{x, y}); }
DEVICE void store_remote(int offset, int rank, u64 x) { store_there(offset, rank, x); }
