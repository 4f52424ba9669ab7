// Gradients of the compressed branch in one pass: of its keys and values, and what it adds to that of the queries.
//
// A block owns 128 keys of a group for one head and walks over a chunk of the tokens that see them, in tiles of BM. Blocks of
// the same head and chunk run side by side, so that queries, and the sums of their gradients, stay in the L2 cache.
// One warp brings tiles by tensor maps, two warps add finished query gradients to global memory, and two warpgroups of
// 64 keys each do five products a tile. All tiles are kept transposed, keys down and tokens across, so that
// probabilities and their gradients go from one product to the next in registers.
//
// Constants: DK, DV (multiples of 64), BM, L, D (compression), STAGES, HALF.

constexpr int BN = 128, DKC = DK / 64, DVC = DV / 64;
// Queries' gradient: 64 of its columns for each warpgroup, transposed; or, if it has but 64, 64 of its rows. Of 64 further
// columns each warpgroup does what its own keys give.
constexpr bool ACROSS = DK > 64, MORE = DK == 192;
static_assert(ACROSS ? DK == 128 || MORE : BM == 128, "a warpgroup takes 64 rows of the queries' gradient");

constexpr int CHUNK_BYTES = BM * 128, K_CHUNK_BYTES = BN * 128;
constexpr int ADDED_BYTES = (ACROSS ? BM : 64) * 64 * 4;
constexpr int AT_K = 0, AT_V = AT_K + DKC * K_CHUNK_BYTES, AT_Q = AT_V + DVC * K_CHUNK_BYTES;
constexpr int AT_DO = AT_Q + STAGES * DKC * CHUNK_BYTES, AT_DS = AT_DO + STAGES * DVC * CHUNK_BYTES;
constexpr int AT_DQ = AT_DS + 2 * 2 * CHUNK_BYTES, AT_SHIFT = AT_DQ + (MORE ? 4 : 2) * ADDED_BYTES;
constexpr int AT_DELTA = AT_SHIFT + STAGES * BM * 4, AT_BARRIERS = AT_DELTA + STAGES * BM * 4;

struct Arguments {
    TensorMap q, d_o, k, v, dq;  // dq [pairs of this launch, S, H / G, DK], added to
    const float *shift, *delta;  // [B * H, padded]
    float *dk, *dv;              // [B * G, n_keys, DK or DV], added to
    int tiles, n_keys, H, G, first, heads, key_tiles, chunk;  // first pair of batch and group
    float scale, scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

struct Place {
    int bg, b, g, in_group, head, n0, tile_begin, tile_end;
};

DEVICE Place place_of(const Arguments &a) {
    Place x;
    const int rest = blockIdx.x / a.key_tiles, end = a.tiles - rest / a.heads * a.chunk;
    x.n0 = blockIdx.x % a.key_tiles * BN;
    const int per_group = a.H / a.G, here = rest % a.heads;
    x.bg = a.first + here / per_group;
    x.b = x.bg / a.G;
    x.g = x.bg % a.G;
    x.in_group = here % per_group;
    x.head = x.g * per_group + x.in_group;
    x.tile_begin = max((x.n0 * D + L - 1) / BM, end - a.chunk);
    x.tile_end = end;
    return x;
}

#include "owned.cuh"

DEVICE void bring(const Arguments &a, const Place &x, u32 base) {
    const u32 keys = bar_keys(base);
    barrier_expect(keys, (DKC + DVC) * K_CHUNK_BYTES);
    for (int c = 0; c < DKC; c++) copy_box(base + AT_K + c * K_CHUNK_BYTES, &a.k, keys, c * 64, x.n0, x.g, x.b);
    for (int c = 0; c < DVC; c++) copy_box(base + AT_V + c * K_CHUNK_BYTES, &a.v, keys, c * 64, x.n0, x.g, x.b);
    const long long row = (long long)(x.b * a.H + x.head) * a.tiles * BM;
    int stage = 0, phase = 1;
    for (int tile = x.tile_begin; tile < x.tile_end; tile++) {
        const u32 q = bar_q(base, stage);
        barrier_wait(q + 8, phase);
        barrier_expect(q, DKC * CHUNK_BYTES + BM * 4);
        for (int c = 0; c < DKC; c++)
            copy_box(base + AT_Q + (stage * DKC + c) * CHUNK_BYTES, &a.q, q, c * 64, tile * BM, x.head, x.b);
        copy_bytes(base + AT_SHIFT + stage * BM * 4, a.shift + row + tile * BM, BM * 4, q);
        barrier_wait(q + 24, phase);
        barrier_expect(q + 16, DVC * CHUNK_BYTES + BM * 4);
        for (int c = 0; c < DVC; c++)
            copy_box(base + AT_DO + (stage * DVC + c) * CHUNK_BYTES, &a.d_o, q + 16, c * 64, tile * BM, x.head, x.b);
        copy_bytes(base + AT_DELTA + stage * BM * 4, a.delta + row + tile * BM, BM * 4, q + 16);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

// Adds what warpgroup `w` left to the queries' gradient.
DEVICE void add_up(const Arguments &a, const Place &x, u32 base, int w, int lane) {
    for (int tile = x.tile_begin; tile < x.tile_end; tile++) {
        arrive_some(4 + w, 160);
        sync_some(2 + w, 160);
        if (lane == 0) {
            const bool turn = (tile - x.tile_begin) % 2 == w;
            for (int box = 0; box < 2; box++)
                add_box(&a.dq, base + AT_DQ + w * ADDED_BYTES + box * (ADDED_BYTES / 2), (ACROSS ? w * 64 : 0) + box * 32,
                        tile * BM + (ACROSS ? 0 : w * 64), x.in_group, x.bg - a.first);
            for (int box = 0; box < 2 * (MORE && turn); box++)
                add_box(&a.dq, base + AT_DQ + (2 + w) * ADDED_BYTES + box * (ADDED_BYTES / 2), 128 + box * 32, tile * BM,
                        x.in_group, x.bg - a.first);
            put_close();
            put_read();
        }
        __syncwarp();
    }
    if (lane == 0) put_done();
}

DEVICE void consume(const Arguments &a, const Place &x, u32 base, int w) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    float dk[DK / 2], dv[DV / 2];
#pragma unroll
    for (int i = 0; i < DK / 2; i++) dk[i] = 0.f;
#pragma unroll
    for (int i = 0; i < DV / 2; i++) dv[i] = 0.f;
    const int key = x.n0 + 64 * w + 16 * warp + g;
    const u64 k_rows = operand(base + AT_K + w * 8192, 16), v_rows = operand(base + AT_V + w * 8192, 16);
    const u64 k_across = operand(base + AT_K + (ACROSS ? w * K_CHUNK_BYTES : 0), K_CHUNK_BYTES);
    const u32 ds_lane = w * CHUNK_BYTES + turned_over(warp, lane);
    const int first_full = (x.n0 + BN - 1) * D + L - 1;
    int stage = 0, phase = 0, buffer = 0;
    barrier_wait(bar_keys(base), 0);
    for (int tile = x.tile_begin; tile < x.tile_end; tile++) {
        const u32 bar = bar_q(base, stage), at_q = base + AT_Q + stage * DKC * CHUNK_BYTES;
        const u32 at_do = base + AT_DO + stage * DVC * CHUNK_BYTES, at_ds = base + AT_DS + buffer * 2 * CHUNK_BYTES;
        float s[BM / 2], dp[BM / 2];
        Rows<BM> rows;
        score_products(s, dp, rows, k_rows, v_rows, at_q, at_do, base + AT_SHIFT + stage * BM * 4 + 8 * t, bar, phase, w);
        if (tile * BM < first_full) {
            // A key is seen from the last token of its compression block on.
            const int since[2] = {key * D + L - 1 - tile * BM - 2 * t, (key + 8) * D + L - 1 - tile * BM - 2 * t};
            probabilities<BM, true>(s, rows, a.scale2, since);
        } else {
            const int since[2] = {0, 0};
            probabilities<BM, false>(s, rows, a.scale2, since);
        }
        u32 p[BM / 16][4];
        as_operand<BM>(p, s);
        rows.load(base + AT_DELTA + stage * BM * 4 + 8 * t);
        const u64 do_across = operand(at_do, CHUNK_BYTES), q_across = operand(at_q, CHUNK_BYTES);
        products_begin();
#pragma unroll
        for (int i = 0; i < BM / 16; i++) multiply<1>(dv, p[i], further(do_across, i * 2048), 1);
        products_close();
        products_wait<1>();
        u32 ds[BM / 16][4];
        score_gradients<BM>(ds, s, dp, rows, at_ds + ds_lane);
        fence_async();
        sync_some<1, 256>();
        float dq[ADDED];
        query_gradients(dq, k_across, operand(at_ds, 16), w);
#pragma unroll
        for (int i = 0; i < BM / 16; i++) multiply<1>(dk, ds[i], further(q_across, i * 2048), 1);
        products_close();
        products_wait<2>();
        if (ARRIVES) barrier_arrive(bar + 24);
        products_wait<1>();
        hand_over(base, w, warp, g, t, dq, at_ds, buffer == w);
        products_wait<0>();
        if (ARRIVES) barrier_arrive(bar + 8);
        buffer ^= 1;
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    const long long out = (long long)x.bg * a.n_keys;
    add_keys<DK>(a.dk + out * DK, dk, key, a.n_keys, t, a.scale);
    add_keys<DV>(a.dv + out * DV, dv, key, a.n_keys, t, 1.f);
}

extern "C" __global__ void __launch_bounds__(384, 1) dense_backward(const __grid_constant__ Arguments a) {
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32;
    const Place x = place_of(a);
    if (x.tile_begin >= x.tile_end) return;
    if (threadIdx.x == 0) {
        begin(a, base);
        barrier_init_done();
    }
    __syncthreads();
    if (warp < 4) {
        give_registers<24>();
        if (threadIdx.x == 0) bring(a, x, base);
        if (warp == 1 || warp == 2) add_up(a, x, base, warp - 1, threadIdx.x % 32);
    } else {
        take_registers<240>();
        consume(a, x, base, warp / 4 - 1);
    }
}
