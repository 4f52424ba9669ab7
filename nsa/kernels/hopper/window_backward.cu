// Gradients of window and forced blocks in one pass: of their keys and values, and what they add to that of the queries.
//
// A block owns 128 keys of a group and walks over the tokens that see them, in tiles of BM, for HS of the group's heads: keys of
// the window; blocks for the tokens of their own block and the next one; or block 0 for all later tokens, some of them. Blocks
// for the same RANGE of tokens and the same heads run side by side, so that queries, and the sums of their gradients, stay in
// the L2 cache. One warp brings tiles by tensor maps, one adds finished query gradients to global memory, and two warpgroups
// of 64 keys each do five products a tile, as in dense_backward.cu.
//
// Constants: DK, DV (multiples of 64), BM, HPG (heads per group), HS, W (window), RANGE, STAGES, HALF.

constexpr int BN = 128, BLOCK = 64, DKC = DK / 64, DVC = DV / 64;
// Queries' gradient: 64 of its columns for each warpgroup, transposed; or, if it has but 64, 64 of its rows.
constexpr bool ACROSS = DK > 64, MORE = DK == 192;  // as in dense_backward.cu
static_assert(ACROSS ? DK == 128 || MORE : BM == 128, "a warpgroup takes 64 rows of the queries' gradient");
// What a block owns among those of a range: keys of the window, keys of blocks, tokens beyond block 0.
constexpr int KEY_TILES = RANGE / BN, SINK_TOKENS = RANGE / 2, ITEMS = 2 * KEY_TILES + RANGE / SINK_TOKENS;

constexpr int CHUNK_BYTES = BM * 128, K_CHUNK_BYTES = BN * 128;
constexpr int ADDED_BYTES = (ACROSS ? BM : 64) * 64 * 4;
constexpr int AT_K = 0, AT_V = AT_K + DKC * K_CHUNK_BYTES, AT_Q = AT_V + DVC * K_CHUNK_BYTES;
constexpr int AT_DO = AT_Q + STAGES * DKC * CHUNK_BYTES, AT_DS = AT_DO + STAGES * DVC * CHUNK_BYTES;
constexpr int AT_DQ = AT_DS + 2 * 2 * CHUNK_BYTES, AT_SHIFT = AT_DQ + (MORE ? 4 : 2) * ADDED_BYTES;
constexpr int AT_DELTA = AT_SHIFT + STAGES * BM * 4, AT_BARRIERS = AT_DELTA + STAGES * BM * 4;
static_assert(HPG % HS == 0 && RANGE % BN == 0 && SINK_TOKENS % BM == 0, "a token of a later block sees block 0 once");

struct Arguments {
    TensorMap q, d_o, k_win, v_win, k_sel, v_sel, dq;  // dq [pairs of this launch, S, H / G, DK], added to
    const float *shift[2], *delta[2];                  // of the window, of the blocks: [B * H, padded]
    float *dk[2], *dv[2];                              // the same: [pairs of this launch, S, DK or DV], added to
    int S, H, G, first, tiles, ranges;                 // first pair of batch and group
    float scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

struct Place {
    int kind, pair, bg, b, g, head, n0, tile_begin, tile_end;  // kind: 0 window, 1 blocks, 2 block 0; first head in the group

    DEVICE int steps() const { return HS * (tile_end - tile_begin); }
};

DEVICE Place place_of(const Arguments &a) {
    Place x;
    const int set = blockIdx.x / ITEMS, item = blockIdx.x % ITEMS, from = set % a.ranges * RANGE, rest = set / a.ranges;
    x.head = rest % (HPG / HS) * HS;
    x.pair = rest / (HPG / HS);
    x.bg = a.first + x.pair;
    x.b = x.bg / a.G;
    x.g = x.bg % a.G;
    x.kind = item / KEY_TILES;
    int begin, end;
    if (x.kind < 2) {
        x.n0 = begin = from + item % KEY_TILES * BN;
        end = begin + BN + (x.kind == 0 ? W - 1 : BLOCK);
    } else {
        x.kind = 2;
        x.n0 = 0;
        begin = max(from + (item - 2 * KEY_TILES) * SINK_TOKENS, 2 * BLOCK);
        end = from + (item - 2 * KEY_TILES + 1) * SINK_TOKENS;
    }
    x.tile_begin = begin / BM;
    x.tile_end = (min(end, a.S) + BM - 1) / BM;
    return x;
}

#include "owned.cuh"

DEVICE void bring(const Arguments &a, const Place &x, u32 base) {
    const u32 keys = bar_keys(base);
    const bool window = x.kind == 0;
    barrier_expect(keys, (DKC + DVC) * K_CHUNK_BYTES);
    for (int c = 0; c < DKC; c++)
        copy_box(base + AT_K + c * K_CHUNK_BYTES, window ? &a.k_win : &a.k_sel, keys, c * 64, x.n0, x.g, x.b);
    for (int c = 0; c < DVC; c++)
        copy_box(base + AT_V + c * K_CHUNK_BYTES, window ? &a.v_win : &a.v_sel, keys, c * 64, x.n0, x.g, x.b);
    const float *shift = a.shift[!window], *delta = a.delta[!window];
    int stage = 0, phase = 1;
    for (int i = 0; i < HS; i++) {
        const int head = x.g * HPG + x.head + i;
        const long long row = (long long)(x.b * a.H + head) * a.tiles * BM;
        for (int tile = x.tile_begin; tile < x.tile_end; tile++) {
            const u32 q = bar_q(base, stage);
            barrier_wait(q + 8, phase);
            barrier_expect(q, DKC * CHUNK_BYTES + BM * 4);
            for (int c = 0; c < DKC; c++)
                copy_box(base + AT_Q + (stage * DKC + c) * CHUNK_BYTES, &a.q, q, c * 64, tile * BM, head, x.b);
            copy_bytes(base + AT_SHIFT + stage * BM * 4, shift + row + tile * BM, BM * 4, q);
            barrier_wait(q + 24, phase);
            barrier_expect(q + 16, DVC * CHUNK_BYTES + BM * 4);
            for (int c = 0; c < DVC; c++)
                copy_box(base + AT_DO + (stage * DVC + c) * CHUNK_BYTES, &a.d_o, q + 16, c * 64, tile * BM, head, x.b);
            copy_bytes(base + AT_DELTA + stage * BM * 4, delta + row + tile * BM, BM * 4, q + 16);
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
        }
    }
}

// Adds what the warpgroups left to the queries' gradient.
DEVICE void add_up(const Arguments &a, const Place &x, u32 base, int lane) {
    int added = 0;
    for (int i = 0; i < HS; i++)
        for (int tile = x.tile_begin; tile < x.tile_end; tile++, added++) {
            arrive_some(4, 160);
            arrive_some(5, 160);
            for (int w = 0; w < 2; w++) {
                sync_some(2 + w, 160);
                if (lane == 0) {
                    for (int box = 0; box < 2; box++)
                        add_box(&a.dq, base + AT_DQ + w * ADDED_BYTES + box * (ADDED_BYTES / 2), (ACROSS ? w * 64 : 0) + box * 32,
                                tile * BM + (ACROSS ? 0 : w * 64), x.head + i, x.pair);
                    for (int box = 0; box < 2 * (MORE && added % 2 == w); box++)
                        add_box(&a.dq, base + AT_DQ + (2 + w) * ADDED_BYTES + box * (ADDED_BYTES / 2), 128 + box * 32, tile * BM,
                                x.head + i, x.pair);
                    put_close();
                }
            }
            if (lane == 0) put_read();
            __syncwarp();
        }
    if (lane == 0) put_done();
}

// Probabilities of tokens before `since` and from `until` on become 0, for each of a lane's two keys.
template <int N_ROWS> DEVICE void keep_between(float (&p)[N_ROWS / 2], const int (&since)[2], const int (&until)[2]) {
#pragma unroll
    for (int i = 0; i < N_ROWS / 2; i++) {
        const int column = i / 4 * 8 + i % 2, h = i / 2 % 2;
        if (column < since[h] || column >= until[h]) p[i] = 0.f;
    }
}

DEVICE void consume(const Arguments &a, const Place &x, u32 base, int w) {
    constexpr int NEVER = 1 << 30;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    float dk[DK / 2], dv[DV / 2];
#pragma unroll
    for (int i = 0; i < DK / 2; i++) dk[i] = 0.f;
#pragma unroll
    for (int i = 0; i < DV / 2; i++) dv[i] = 0.f;
    const int lowest = x.n0 + 64 * w;
    // A warpgroup's key number r is seen by tokens from `since + r` on, or `since` for block 0, and before `until`; in the window
    // before `until + r`.
    const int since = x.kind < 2 ? lowest : w == 0 ? 2 * BLOCK : NEVER;
    const int until = x.kind == 2 ? NEVER : lowest + (x.kind == 0 ? W : 2 * BLOCK);
    const u64 k_rows = operand(base + AT_K + w * 8192, 16), v_rows = operand(base + AT_V + w * 8192, 16);
    const u64 k_across = operand(base + AT_K + (ACROSS ? w * K_CHUNK_BYTES : 0), K_CHUNK_BYTES);
    const u32 ds_lane = w * CHUNK_BYTES + turned_over(warp, lane);
    int stage = 0, phase = 0, buffer = 0, tile = x.tile_begin;
    barrier_wait(bar_keys(base), 0);
    for (int step = x.steps(); step > 0; step--) {
        const u32 bar = bar_q(base, stage), at_q = base + AT_Q + stage * DKC * CHUNK_BYTES;
        const u32 at_do = base + AT_DO + stage * DVC * CHUNK_BYTES, at_ds = base + AT_DS + buffer * 2 * CHUNK_BYTES;
        const int t0 = tile * BM;
        if (!__any_sync(~0u, t0 + BM > since && t0 < until + (x.kind == 0 ? 63 : 0))) {
            // Nobody here sees a key of this warpgroup: it only does its part of the other one's queries.
            const u32 none[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < BM / 16; i++) store_matrices_transposed(at_ds + ds_lane + i * 2048, none);
            wait_turn(w);
            end_turn(w);
            fence_async();
            sync_some<1, 256>();
            float dq[ADDED];
            query_gradients(dq, k_across, operand(at_ds, 16), w);
            if (ARRIVES) barrier_arrive(bar + 8);
            if (ARRIVES) barrier_arrive(bar + 24);
            products_wait<0>();
            hand_over(base, w, warp, g, t, dq, at_ds, buffer == w);
            buffer ^= 1;
            if (++tile == x.tile_end) tile = x.tile_begin;
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1;
            }
            continue;
        }
        float s[BM / 2], dp[BM / 2];
        Rows<BM> rows;
        score_products(s, dp, rows, k_rows, v_rows, at_q, at_do, base + AT_SHIFT + stage * BM * 4 + 8 * t, bar, phase, w);
        const int none[2] = {0, 0};
        probabilities<BM, false>(s, rows, a.scale2, none);
        if (t0 < since + (x.kind < 2 ? 63 : 0) || t0 + BM > until) {
            int from[2], to[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int r = 16 * warp + g + 8 * h, here = t0 + 2 * t;
                from[h] = since + (x.kind < 2 ? r : 0) - here;
                to[h] = until + (x.kind == 0 ? r : 0) - here;
            }
            keep_between<BM>(s, from, to);
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
        if (++tile == x.tile_end) tile = x.tile_begin;
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
    const long long out = (long long)x.pair * a.S;
    const int key = lowest + 16 * warp + g, n_keys = x.kind == 2 ? BLOCK : a.S;
    add_keys<DK>(a.dk[x.kind > 0] + out * DK, dk, key, n_keys, t, 1.f);
    add_keys<DV>(a.dv[x.kind > 0] + out * DV, dv, key, n_keys, t, 1.f);
}

extern "C" __global__ void __launch_bounds__(384, 1) window_backward(const __grid_constant__ Arguments a) {
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
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
        if (warp == 1) add_up(a, x, base, lane);
    } else {
        take_registers<240>();
        consume(a, x, base, warp / 4 - 1);
    }
}
