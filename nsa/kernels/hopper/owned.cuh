// What the kernels that own keys and walk over tokens share; they name it after their constants and `Arguments`.

// Barriers: keys and values; queries full and empty; output gradients full and empty.
DEVICE u32 bar_keys(u32 base) { return base + AT_BARRIERS; }
DEVICE u32 bar_q(u32 base, int stage) { return base + AT_BARRIERS + 8 + stage * 32; }
DEVICE void begin(const Arguments &a, u32 base) {
    prefetch_map(&a.q);
    prefetch_map(&a.d_o);
    barrier_init(bar_keys(base), 1);
    for (int stage = 0; stage < STAGES; stage++) {
        const u32 q = bar_q(base, stage);
        barrier_init(q, 1);
        barrier_init(q + 8, 8 * ARRIVALS);
        barrier_init(q + 16, 1);
        barrier_init(q + 24, 8 * ARRIVALS);
    }
}

// The first warpgroup's products of a tile are asked for before the second one's, so that exponentials of one run beside
// products of the other.
DEVICE void wait_turn(int w) {
    if (w == 1) sync_some<6, 256>();
}
DEVICE void end_turn(int w) {
    if (w == 0) arrive_some(6, 256);
}

// Scores and dO . v of a tile, once queries and output gradients are there; the latter may be on its way still. `rows`: what
// scores lose, from `at_rows` on.
DEVICE void score_products(float (&s)[BM / 2], float (&dp)[BM / 2], Rows<BM> &rows, u64 k_rows, u64 v_rows, u32 at_q,
                           u32 at_do, u32 at_rows, u32 bar, int phase, int w) {
    const u64 q_rows = operand(at_q, 16), do_rows = operand(at_do, 16);
    barrier_wait(bar, phase);
    rows.load(at_rows);
    wait_turn(w);
    products_begin();
#pragma unroll
    for (int i = 0; i < DK / 16; i++)
        multiply<0, 0>(s, further(k_rows, i / 4 * K_CHUNK_BYTES + i % 4 * 32),
                       further(q_rows, i / 4 * CHUNK_BYTES + i % 4 * 32), i > 0);
    products_close();
    barrier_wait(bar + 16, phase);
    products_begin();
#pragma unroll
    for (int i = 0; i < DV / 16; i++)
        multiply<0, 0>(dp, further(v_rows, i / 4 * K_CHUNK_BYTES + i % 4 * 32),
                       further(do_rows, i / 4 * CHUNK_BYTES + i % 4 * 32), i > 0);
    products_close();
    end_turn(w);
    products_wait<1>();
}

constexpr int ADDED = ACROSS ? BM / 2 : 32;

// What both warpgroups' keys give to this warpgroup's part of the queries' gradient.
DEVICE void query_gradients(float (&dq)[ADDED], u64 k_across, u64 ds_rows, int w) {
    products_begin();
#pragma unroll
    for (int i = 0; i < BN / 16; i++) {
        if constexpr (ACROSS)
            multiply<1, 0>(dq, further(k_across, i * 2048), further(ds_rows, i / 4 * CHUNK_BYTES + i % 4 * 32), i > 0);
        else
            multiply<0, 1>(dq, further(ds_rows, w * 8192 + i / 4 * CHUNK_BYTES + i % 4 * 32), further(k_across, i * 2048), i > 0);
    }
    products_close();
}

// Boxes of 32 columns of that part, their 16 bytes swizzled by row as the tensor map has it.
DEVICE void store_part(u32 at_dq, int warp, int g, int t, const float (&dq)[ADDED]) {
#if DK > 64
    store_across<BM>(at_dq, warp, g, t, dq);
#else
    store_down(at_dq, ADDED_BYTES / 2, warp, g, t, dq);
#endif
}

// Leaves it to the warp that adds it to the sums in memory, once that has taken the one before; of 192 columns also the last
// 64, if it is this warpgroup's turn.
DEVICE void hand_over(u32 base, int w, int warp, int g, int t, float (&dq)[ADDED], u32 at_ds, bool turn) {
    const u32 at_dq = base + AT_DQ + w * ADDED_BYTES;
    sync_some(4 + w, 160);
    store_part(at_dq, warp, g, t, dq);
    if (MORE && turn) {
        query_gradients(dq, operand(base + AT_K + 2 * K_CHUNK_BYTES, 0), operand(at_ds, 16), w);
        products_wait<0>();
        store_part(at_dq + 2 * ADDED_BYTES, warp, g, t, dq);
    }
    fence_async();
    arrive_some(2 + w, 160);
}
