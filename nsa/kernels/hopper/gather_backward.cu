// Gradients of the scored blocks in one pass: of 64 keys and values, and what they add to that of the queries.
//
// A block of threads owns a block of keys and takes the tokens of one list that chose it, all heads of their group, in tiles
// of ROWS rows. One warp brings queries and output gradients by tensor maps, a box for each token; one warp brings what is
// known of each row; two warpgroups take turns with the tiles and keep a sum each; a warp for each of them adds finished
// query gradients to global memory. Tiles are kept transposed as in dense_backward.cu.
//
// Constants: DK, DV (64 or 128), HPG (heads per group), NTOP, TT (pairs of a work tile), STAGES, HALF.

constexpr int BM = 64, DKC = DK / 64, DVC = DV / 64, TOKENS = BM / HPG, ROWS = TOKENS * HPG;
constexpr int CHUNK_BYTES = BM * 128;
constexpr int AT_K = 0, AT_V = AT_K + DKC * CHUNK_BYTES, AT_TILES = AT_V + DVC * CHUNK_BYTES;
constexpr int STAGE_BYTES = (DKC + DVC) * CHUNK_BYTES, DQ_BYTES = BM * DK * 4;
constexpr int AT_DS = AT_TILES + STAGES * STAGE_BYTES, AT_DQ = AT_DS + 4 * CHUNK_BYTES, AT_ROWS = AT_DQ + 2 * DQ_BYTES;
constexpr int AT_BARRIERS = AT_ROWS + STAGES * BM * 8;

struct Arguments {
    TensorMap q, d_o, k, v, dq;  // dq [B, S, H, DK], added to
    const float *shift, *delta;  // [B, S, H]
    const int *pairs, *offsets, *tile_offsets, *tile_block;
    float *dk, *dv;  // [B * G, S, DK or DV], added to
    int S, H, G, blocks, lists, n_pairs, max_tiles;
    float scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

struct Place {
    int b, g, bg, block, first, end, tiles;
};

DEVICE Place place_of(const Arguments &a) {
    Place x;
    x.bg = blockIdx.y;
    x.b = x.bg / a.G;
    x.g = x.bg % a.G;
    const int list = a.tile_block[x.bg * a.max_tiles + blockIdx.x];
    x.tiles = 0;
    if (list < 0) return x;
    x.block = list % a.blocks;
    const int at = x.bg * (a.lists + 1) + list;
    x.first = a.offsets[at] + ((int)blockIdx.x - a.tile_offsets[at]) * TT;
    x.end = min(x.first + TT, a.offsets[at + 1]);
    x.tiles = (x.end - x.first + TOKENS - 1) / TOKENS;
    return x;
}

// Barriers: keys and values; a stage full, and empty.
DEVICE u32 bar_keys(u32 base) { return base + AT_BARRIERS; }
DEVICE u32 bar_full(u32 base, int stage) { return base + AT_BARRIERS + 8 + stage * 16; }

DEVICE void bring(const Arguments &a, const Place &x, u32 base, int lane) {
    constexpr int BOXES = TOKENS * (DKC + DVC);
    if (lane == 0) {
        const u32 keys = bar_keys(base);
        barrier_expect(keys, (DKC + DVC) * CHUNK_BYTES);
        for (int c = 0; c < DKC; c++) copy_box(base + AT_K + c * CHUNK_BYTES, &a.k, keys, c * 64, x.block * 64, x.g, x.b);
        for (int c = 0; c < DVC; c++) copy_box(base + AT_V + c * CHUNK_BYTES, &a.v, keys, c * 64, x.block * 64, x.g, x.b);
    }
    const int *pairs = a.pairs + (long long)x.bg * a.n_pairs;
    int stage = 0, phase = 1;
    for (int i = 0; i < x.tiles; i++) {
        const int e0 = x.first + i * TOKENS, n = min(TOKENS, x.end - e0);
        int token[(BOXES + 31) / 32];
#pragma unroll
        for (int r = 0; r < (BOXES + 31) / 32; r++) {
            const int slot = (lane + 32 * r) / (DKC + DVC);
            token[r] = slot < n ? pairs[e0 + slot] / NTOP : -1;
        }
        const u32 full = bar_full(base, stage);
        barrier_wait(full + 8, phase);
        if (lane == 0) barrier_expect(full, n * HPG * (DK + DV) * 2);
        __syncwarp();
#pragma unroll
        for (int r = 0; r < (BOXES + 31) / 32; r++) {
            const int slot = (lane + 32 * r) / (DKC + DVC), c = (lane + 32 * r) % (DKC + DVC);
            if (token[r] >= 0)
                copy_box(base + AT_TILES + stage * STAGE_BYTES + c * CHUNK_BYTES + slot * HPG * 128, c < DKC ? &a.q : &a.d_o,
                         full, (c < DKC ? c : c - DKC) * 64, x.g * HPG, token[r], x.b);
        }
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

// Two rows for each lane.
DEVICE void bring_rows(const Arguments &a, const Place &x, u32 base, int lane) {
    const int *pairs = a.pairs + (long long)x.bg * a.n_pairs;
    int stage = 0, phase = 1;
    for (int i = 0; i < x.tiles; i++) {
        const int e0 = x.first + i * TOKENS;
        float shift[2], delta[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = lane + 32 * r, e = e0 + row / HPG;
            // An idle row's probabilities are zero; its place holds what was there before, or zeros.
            shift[r] = __int_as_float(0x7f800000);
            delta[r] = 0.f;
            if (row < ROWS && e < x.end) {
                const long long at = ((long long)x.b * a.S + pairs[e] / NTOP) * a.H + x.g * HPG + row % HPG;
                shift[r] = a.shift[at];
                delta[r] = a.delta[at];
            }
        }
        const u32 full = bar_full(base, stage), to = base + AT_ROWS + stage * BM * 8 + lane * 4;
        barrier_wait(full + 8, phase);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            store_one(to + r * 128, shift[r]);
            store_one(to + r * 128 + BM * 4, delta[r]);
        }
        barrier_arrive(full);
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
}

// Adds what warpgroup `w` leaves to the queries' gradient: boxes of a token's heads by 32 columns.
DEVICE void add_up(const Arguments &a, const Place &x, u32 base, int w, int lane) {
    constexpr int BOXES = DK / 32;
    const int *pairs = a.pairs + (long long)x.bg * a.n_pairs;
    for (int i = w; i < x.tiles; i += 2) {
        const int e0 = x.first + i * TOKENS, n = min(TOKENS, x.end - e0);
        int token[(TOKENS * BOXES + 31) / 32];
#pragma unroll
        for (int r = 0; r < (TOKENS * BOXES + 31) / 32; r++) {
            const int slot = (lane + 32 * r) / BOXES;
            token[r] = slot < n ? pairs[e0 + slot] / NTOP : -1;
        }
        arrive_some(4 + w, 160);
        sync_some(2 + w, 160);
#pragma unroll
        for (int r = 0; r < (TOKENS * BOXES + 31) / 32; r++) {
            const int slot = (lane + 32 * r) / BOXES, box = (lane + 32 * r) % BOXES;
            if (token[r] >= 0)
                add_box(&a.dq, base + AT_DQ + w * DQ_BYTES + box * CHUNK_BYTES + slot * HPG * 128, box * 32, x.g * HPG, token[r],
                        x.b);
        }
        add_close();
        added_read();
        __syncwarp();
    }
    added();
}

DEVICE void consume(const Arguments &a, const Place &x, u32 base, int w) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    float dk[DK / 2], dv[DV / 2];
#pragma unroll
    for (int i = 0; i < DK / 2; i++) dk[i] = 0.f;
#pragma unroll
    for (int i = 0; i < DV / 2; i++) dv[i] = 0.f;
    const u64 k_rows = operand(base + AT_K, CHUNK_BYTES), v_rows = operand(base + AT_V, 16);
    const u32 ds_lane = turned_over(warp, lane);
    int buffer = 0;
    barrier_wait(bar_keys(base), 0);
    for (int i = w; i < x.tiles; i += 2) {
        const int stage = i % STAGES;
        const u32 full = bar_full(base, stage), at_q = base + AT_TILES + stage * STAGE_BYTES, at_do = at_q + DKC * CHUNK_BYTES;
        const u32 at_ds = base + AT_DS + (2 * w + buffer) * CHUNK_BYTES;
        const u64 q_tile = operand(at_q, CHUNK_BYTES), do_tile = operand(at_do, CHUNK_BYTES), ds_tile = operand(at_ds, 16);
        float s[BM / 2], dp[BM / 2];
        barrier_wait(full, i / STAGES & 1);
        products_begin();
#pragma unroll
        for (int k = 0; k < DK / 16; k++) {
            const int at = k / 4 * CHUNK_BYTES + k % 4 * 32;
            multiply<0, 0>(s, further(k_rows, at), further(q_tile, at), k > 0);
        }
        products_close();
#pragma unroll
        for (int k = 0; k < DV / 16; k++) {
            const int at = k / 4 * CHUNK_BYTES + k % 4 * 32;
            multiply<0, 0>(dp, further(v_rows, at), further(do_tile, at), k > 0);
        }
        products_close();
        products_wait<1>();
        const u32 shift = base + AT_ROWS + stage * BM * 8 + 8 * t;
        const int since[2] = {0, 0};
        probabilities<BM, false>(s, shift, a.scale2, since);
        u32 p[BM / 16][4], ds[BM / 16][4];
        as_operand<BM>(p, s);
        products_begin();
#pragma unroll
        for (int k = 0; k < BM / 16; k++) multiply<1>(dv, p[k], further(do_tile, k * 2048), 1);
        products_close();
        products_wait<1>();
        score_gradients<BM>(ds, s, dp, shift + BM * 4, at_ds + ds_lane);
        fence_async();
        sync_some(6 + w, 128);
        // Queries' gradients by 64 columns: all of them at once would leave the sums without registers.
#pragma unroll
        for (int c = 0; c < DKC; c++) {
            float dq[BM / 2];
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; k++)
                multiply<1, 0>(dq, further(k_rows, c * CHUNK_BYTES + k * 2048), further(ds_tile, k * 32), k > 0);
            products_close();
            if (c == 0) {
#pragma unroll
                for (int k = 0; k < BM / 16; k++) multiply<1>(dk, ds[k], further(q_tile, k * 2048), 1);
                products_close();
                products_wait<1>();
                sync_some(4 + w, 160);
            } else {
                products_wait<0>();
            }
            store_across<BM>(base + AT_DQ + w * DQ_BYTES + c * 2 * CHUNK_BYTES, warp, g, t, dq);
        }
        fence_async();
        arrive_some(2 + w, 160);
        products_wait<0>();
        if (lane == 0) barrier_arrive(full + 8);
        buffer ^= 1;
    }
    const int key = x.block * 64 + 16 * warp + g;
    const long long out = (long long)x.bg * a.S;
    if (w < x.tiles) {
        add_keys<DK>(a.dk + out * DK, dk, key, a.S, t, 1.f);
        add_keys<DV>(a.dv + out * DV, dv, key, a.S, t, 1.f);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1) gather_backward(const __grid_constant__ Arguments a) {
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Place x = place_of(a);
    if (x.tiles == 0) return;
    if (threadIdx.x == 0) {
        barrier_init(bar_keys(base), 1);
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(bar_full(base, stage), 33);
            barrier_init(bar_full(base, stage) + 8, 4);
        }
        barrier_init_done();
    }
    // Rows that no copy reaches must hold numbers.
    for (int i = threadIdx.x; i < STAGES * STAGE_BYTES / 16; i += 384) store_zeros(base + AT_TILES + i * 16);
    fence_async();
    __syncthreads();
    if (warp < 4) {
        give_registers<24>();
        if (warp == 0) bring(a, x, base, lane);
        if (warp == 3) bring_rows(a, x, base, lane);
        if (warp == 1 || warp == 2) add_up(a, x, base, warp - 1, lane);
    } else {
        take_registers<240>();
        consume(a, x, base, warp / 4 - 1);
    }
}
