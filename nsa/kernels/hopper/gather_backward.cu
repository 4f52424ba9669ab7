// Gradients of the scored blocks in one pass: of 64 keys and values, and what they add to that of the queries.
//
// A work tile is a block of keys and up to TT tokens of one list that chose it, all heads of their group, taken ROWS rows at
// a time. As many blocks of threads as processors walk over the work tiles, so that side by side run neighbours, whose
// queries are in the L2 cache. One warp brings queries and output gradients by tensor maps, a box for each token; one warp
// brings what is known of each row; two warpgroups take turns with the rows and keep a sum each; a warp for each of them brings
// finished query gradients to global memory: as partial results by pair (PARTS), or added to sums, which pays only where
// most of these stay in the L2 cache. Tiles are kept transposed as in dense_backward.cu.
//
// Constants: DK (64, 128 or 192), DV (64 or 128), BM, HPG (heads per group), NTOP, TT (pairs of a work tile), PARTS,
// SPLIT (few heads: two warps bring rows), STAGES, HALF.

constexpr int BN = 64, DKC = DK / 64, DVC = DV / 64, TOKENS = BM / HPG, ROWS = TOKENS * HPG, K_CHUNK_BYTES = BN * 128;
constexpr int CHUNK_BYTES = BM * 128, STAGE_BYTES = (DKC + DVC) * CHUNK_BYTES, DQ_BYTES = BM * DK * (PARTS ? 2 : 4);
constexpr int AT_K = 0, AT_V = AT_K + DKC * K_CHUNK_BYTES, AT_TILES = AT_V + DVC * K_CHUNK_BYTES;
constexpr int AT_DS = AT_TILES + STAGES * STAGE_BYTES, AT_DQ = AT_DS + 4 * CHUNK_BYTES, AT_ROWS = AT_DQ + 2 * DQ_BYTES;
constexpr int AT_BARRIERS = AT_ROWS + STAGES * BM * 8;
// Of a lane's part of a sum of keys, as much as is exchanged at a time.
constexpr int HANDED = DK / 2 * 512 <= 4 * CHUNK_BYTES ? DK / 2 : DK / 4;
static_assert(DV / 2 * 512 <= AT_TILES && HANDED * 512 <= 4 * CHUNK_BYTES && BM <= 64, "room for an exchange of sums");

struct Arguments {
    TensorMap q, d_o, k, v, dq;  // dq by pair [1, ., HPG, DK]; or [., S, HPG, DK], added to
    const float *shift, *delta;  // [B, S, H]
    const int *pairs, *offsets, *tile_offsets, *tile_block;
    float *dk, *dv;  // [pairs of this launch, S, DK or DV], added to
    int S, H, G, blocks, lists, n_pairs, max_tiles, list_from, list_end, bg, bg_end;
    int n_parts, pair_from;  // partial results of a pair of batch and group, and of which token and slot the first one is
    float scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

#include "lists.cuh"

// Barriers: keys and values there, and done with; for each stage and warpgroup rows there; for each stage done with. A stage
// goes from one warpgroup to the other, and a warpgroup must not take the other's rows for its own.
DEVICE u32 bar_keys(u32 base) { return base + AT_BARRIERS; }
DEVICE u32 bar_full(u32 base, int step) { return base + AT_BARRIERS + 16 + step % (2 * STAGES) * 8; }
DEVICE u32 bar_empty(u32 base, int step) { return base + AT_BARRIERS + 16 + 2 * STAGES * 8 + step % STAGES * 8; }

// Asks for the keys and values of a work tile once those of the one before are done with.
DEVICE void bring_keys(const Arguments &a, const Work &x, u32 base, int count, int lane) {
    const u32 keys = bar_keys(base);
    barrier_wait(keys + 8, count & 1 ^ 1);
    if (lane == 0) {
        barrier_expect(keys, (DKC + DVC) * K_CHUNK_BYTES);
        for (int c = 0; c < DKC + DVC; c++)
            copy_box(base + AT_K + c * K_CHUNK_BYTES, c < DKC ? &a.k : &a.v, keys, (c < DKC ? c : c - DKC) * 64, x.block * BN, x.g,
                     x.b);
    }
}

#if SPLIT

#include "few_heads.cuh"

#else

DEVICE void bring(const Arguments &a, u32 base, int lane) {
    constexpr int BOXES = DKC + DVC, ROUNDS = (TOKENS * BOXES + 31) / 32;
    int step = 0, count = 0, before = 0;
    Work x(a);
    for (; x.find(a); x.next(), count++) {
        // The first rows come before the keys, whose room is in use until the work tile before is done.
        const int keys_after = before + min(x.steps, STAGES) - 1;
        before += x.steps;
        for (int e = x.first; e < x.end; e += TOKENS, step++) {
            const int stage = step % STAGES;
            const u32 full = bar_full(base, step);
            barrier_wait(bar_empty(base, step), step / STAGES & 1 ^ 1);
            if (lane == 0) barrier_expect(full, ROWS * (DK + DV) * 2);
            __syncwarp();
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                const int slot = (lane + 32 * r) / BOXES, c = (lane + 32 * r) % BOXES;
                // Beyond the end the last token comes again, with no weight.
                if (slot < TOKENS)
                    copy_box(base + AT_TILES + stage * STAGE_BYTES + c * CHUNK_BYTES + slot * HPG * 128, c < DKC ? &a.q : &a.d_o,
                             full, (c < DKC ? c : c - DKC) * 64, x.g * HPG, x.pairs[min(e + slot, x.end - 1)] / NTOP, x.b);
            }
            if (step != keys_after) continue;
            bring_keys(a, x, base, count, lane);
        }
    }
}

// Two rows for each lane.
DEVICE void bring_rows(const Arguments &a, u32 base, int lane) {
    int step = 0;
    Work x(a);
    for (; x.find(a); x.next())
        for (int e0 = x.first; e0 < x.end; e0 += TOKENS, step++) {
            float shift[2], delta[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = lane + 32 * r, e = e0 + row / HPG;
                shift[r] = __int_as_float(0x7f800000);
                delta[r] = 0.f;
                if (row < ROWS && e < x.end) {
                    const long long at = ((long long)x.b * a.S + x.pairs[e] / NTOP) * a.H + x.g * HPG + row % HPG;
                    shift[r] = a.shift[at];
                    delta[r] = a.delta[at];
                }
            }
            const u32 to = base + AT_ROWS + step % STAGES * BM * 8 + lane * 4;
            barrier_wait(bar_empty(base, step), step / STAGES & 1 ^ 1);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (lane + 32 * r >= BM) continue;
                store_one(to + r * 128, shift[r]);
                store_one(to + r * 128 + BM * 4, delta[r]);
            }
            barrier_arrive(bar_full(base, step));
        }
}

#endif

// Brings what warpgroup `w` leaves to global memory: boxes of a token's heads by 128 bytes.
DEVICE void bring_out(const Arguments &a, u32 base, int w, int lane) {
    constexpr int BOXES = DQ_BYTES / CHUNK_BYTES, ROUNDS = (TOKENS * BOXES + 31) / 32;
    int step = 0;
    Work x(a);
    for (; x.find(a); x.next())
        for (int e = x.first; e < x.end; e += TOKENS, step++) {
            if (step % 2 != w) continue;
            int pair[ROUNDS];
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                const int slot = (lane + 32 * r) / BOXES;
                pair[r] = slot < TOKENS && e + slot < x.end ? x.pairs[e + slot] : -1;
            }
            __syncwarp();
            arrive_some(4 + w, 160);
            sync_some(2 + w, 160);
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) {
                const int slot = (lane + 32 * r) / BOXES, box = (lane + 32 * r) % BOXES;
                const u32 from = base + AT_DQ + w * DQ_BYTES + box * CHUNK_BYTES + slot * HPG * 128;
                if (pair[r] < 0) continue;
                if (PARTS)
                    put_box(&a.dq, from, box * 64, 0, (x.bg - a.bg) * a.n_parts + pair[r] - a.pair_from, 0);
                else
                    add_box(&a.dq, from, box * 32, 0, pair[r] / NTOP, x.bg - a.bg);
            }
            put_close();
            put_read();
        }
    put_done();
}

template <int N, int ALL> DEVICE void give(u32 to, const float (&x)[ALL], int from) {
#pragma unroll
    for (int i = 0; i < N; i++) store_one(to + (i * 128 + threadIdx.x % 128) * 4, x[from + i]);
}
template <int N, int ALL> DEVICE void take(u32 at, float (&x)[ALL], int from) {
#pragma unroll
    for (int i = 0; i < N; i++) x[from + i] += load_one(at + (i * 128 + threadIdx.x % 128) * 4);
}

DEVICE void consume(const Arguments &a, u32 base, int w) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    const u64 k_rows = operand(base + AT_K, K_CHUNK_BYTES), v_rows = operand(base + AT_V, 16);
    const u32 keys = bar_keys(base), ds_lane = turned_over(warp, lane);
    int buffer = 0, before = 0, count = 0;
    Work x(a);
    for (; x.find(a); x.next(), count++) {
        float dk[DK / 2], dv[DV / 2];
#pragma unroll
        for (int i = 0; i < DK / 2; i++) dk[i] = 0.f;
#pragma unroll
        for (int i = 0; i < DV / 2; i++) dv[i] = 0.f;
        barrier_wait(keys, count & 1);
        for (int step = before + ((before ^ w) & 1); step < before + x.steps; step += 2) {
            const int stage = step % STAGES;
            const u32 at_q = base + AT_TILES + stage * STAGE_BYTES, at_do = at_q + DKC * CHUNK_BYTES;
            const u32 at_ds = base + AT_DS + (2 * w + buffer) * CHUNK_BYTES;
            const u64 q_tile = operand(at_q, CHUNK_BYTES), do_tile = operand(at_do, CHUNK_BYTES), ds_tile = operand(at_ds, 16);
            float s[BM / 2], dp[BM / 2];
            barrier_wait(bar_full(base, step), step / (2 * STAGES) & 1);
            const u32 at_rows = base + AT_ROWS + stage * BM * 8 + 8 * t;
            Rows<BM, false> rows, deltas;
            rows.load(at_rows);
            products_begin();
#pragma unroll
            for (int k = 0; k < DK / 16; k++) {
                const int in_chunk = k % 4 * 32;
                multiply<0, 0>(s, further(k_rows, k / 4 * K_CHUNK_BYTES + in_chunk), further(q_tile, k / 4 * CHUNK_BYTES + in_chunk), k > 0);
            }
            products_close();
#pragma unroll
            for (int k = 0; k < DV / 16; k++) {
                const int in_chunk = k % 4 * 32;
                multiply<0, 0>(dp, further(v_rows, k / 4 * K_CHUNK_BYTES + in_chunk), further(do_tile, k / 4 * CHUNK_BYTES + in_chunk), k > 0);
            }
            products_close();
            products_wait<1>();
            const int since[2] = {0, 0};
            probabilities<BM, false>(s, rows, a.scale2, since);
            u32 p[BM / 16][4], ds[BM / 16][4];
            as_operand<BM>(p, s);
            deltas.load(at_rows + BM * 4);
            products_begin();
#pragma unroll
            for (int k = 0; k < BM / 16; k++) multiply<1>(dv, p[k], further(do_tile, k * 2048), 1);
            products_close();
            products_wait<1>();
            score_gradients<BM>(ds, s, dp, deltas, at_ds + ds_lane);
            fence_async();
            sync_some(6 + w, 128);
            // Queries' gradients by 64 columns: all of them at once would leave the sums without registers.
#pragma unroll
            for (int c = 0; c < DKC; c++) {
                float dq[BM / 2];
                products_begin();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    multiply<1, 0>(dq, further(k_rows, c * K_CHUNK_BYTES + k * 2048), further(ds_tile, k * 32), k > 0);
                products_close();
                if (c == 0) {
#pragma unroll
                    for (int k = 0; k < BM / 16; k++) multiply<1>(dk, ds[k], further(q_tile, k * 2048), 1);
                    products_close();
                    products_wait<1>();
                    sync_some(4 + w, 160);
                } else {
                    products_wait<0>();
                    if (c == 1 && ARRIVES) barrier_arrive(bar_empty(base, step));
                }
                const u32 at_dq = base + AT_DQ + w * DQ_BYTES + c * (DQ_BYTES / DKC);
                if (PARTS)
                    store_turned<BM>(at_dq + ds_lane, dq);
                else
                    store_across<BM>(at_dq, warp, g, t, dq);
            }
            fence_async();
            arrive_some(2 + w, 160);
            if (DKC == 1) {
                products_wait<0>();
                if (ARRIVES) barrier_arrive(bar_empty(base, step));
            }
            buffer ^= 1;
        }
        before += x.steps;
        // Each warpgroup takes the other's half of one sum: room for it is where keys, and gradients of scores, were.
        sync_some<1, 256>();
        const int key = x.block * BN + 16 * warp + g;
        const long long out = (long long)(x.bg - a.bg) * a.S;
#pragma unroll
        for (int part = 0; part < DK / 2 / HANDED; part++) {
            if (part > 0) sync_some<1, 256>();
            if (w == 1)
                give<HANDED>(base + AT_DS, dk, part * HANDED);
            else if (part == 0)
                give<DV / 2>(base + AT_K, dv, 0);
            sync_some<1, 256>();
            if (w == 0)
                take<HANDED>(base + AT_DS, dk, part * HANDED);
            else if (part == 0)
                take<DV / 2>(base + AT_K, dv, 0);
        }
        if (w == 0)
            add_keys<DK>(a.dk + out * DK, dk, key, a.S, t, 1.f);
        else
            add_keys<DV>(a.dv + out * DV, dv, key, a.S, t, 1.f);
        fence_async();
        __syncwarp();
        if (ARRIVES) barrier_arrive(keys + 8);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) gather_backward(const __grid_constant__ Arguments a) {
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        barrier_init(bar_keys(base), 1);
        barrier_init(bar_keys(base) + 8, 8 * ARRIVALS);
        for (int i = 0; i < 2 * STAGES; i++) barrier_init(bar_full(base, i), 33 + SPLIT);
        for (int i = 0; i < STAGES; i++) barrier_init(bar_empty(base, i), 4 * ARRIVALS);
        barrier_init_done();
    }
    // Rows that no copy reaches must hold numbers.
    if (ROWS < BM)
        for (int i = threadIdx.x; i < STAGES * STAGE_BYTES / 16; i += 384) store_zeros(base + AT_TILES + i * 16);
    fence_async();
    __syncthreads();
    if (warp < 4) {
        give_registers<DK <= 128 ? 40 : 24>();
        if (warp == 0) bring(a, base, lane);
        if (warp == 3) bring_rows(a, base, lane);
        if (warp == 1 || warp == 2) bring_out(a, base, warp - 1, lane);
    } else {
        take_registers<DK <= 128 ? 232 : 240>();
        consume(a, base, warp / 4 - 1);
    }
}
