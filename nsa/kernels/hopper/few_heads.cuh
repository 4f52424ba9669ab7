// How rows come to gather_backward.cu where a group has few heads. There are many boxes then, and a warp asks for one in some 75
// cycles, so two share them: one brings queries, the other output gradients and what is known of each row. Nothing here waits for
// memory where it is asked for: tokens are found a step before their boxes, and rows' numbers a step before that.

// Asks for rows of q and dO, from a chunk on that counts through both.
template <int CHUNKS>
DEVICE void ask(const Arguments &a, const Work &x, const Boxes<CHUNKS> &boxes, u32 base, int step, int chunk, int lane) {
    const u32 tile = base + AT_TILES + step % STAGES * STAGE_BYTES, full = bar_full(base, step);
    if (lane == 0) barrier_expect(full, ROWS * CHUNKS * 128);
    __syncwarp();
    boxes.bring(x, lane, [&](int slot, int i, int token) {
        const int c = chunk + i;
        copy_box(tile + c * CHUNK_BYTES + slot * HPG * 128, c < DKC ? &a.q : &a.d_o, full, (c < DKC ? c : c - DKC) * 64, x.g * HPG,
                 token, x.b);
    });
}

DEVICE void bring(const Arguments &a, u32 base, int lane) {
    int step = 0, count = 0, before = 0;
    Work x(a);
    for (; x.find(a); x.next(), count++) {
        // The first rows come before the keys, whose room is in use until the work tile before is done.
        const int keys_after = before + min(x.steps, STAGES) - 1;
        before += x.steps;
        Boxes<DKC> now, then;
        then.find(x, x.first, lane);
        for (int e = x.first; e < x.end; e += TOKENS, step++) {
            now = then;
            then.find(x, e + TOKENS, lane);
            barrier_wait(bar_empty(base, step), step / STAGES & 1 ^ 1);
            ask(a, x, now, base, step, 0, lane);
            if (step != keys_after) continue;
            bring_keys(a, x, base, count, lane);
        }
    }
}

// What is known of two rows for each lane: found in two steps, neither of which waits for memory.
struct Known {
    int pair[2];
    float shift[2], delta[2];

    DEVICE void find(const Work &x, int e, int lane) {
#pragma unroll
        for (int r = 0; r < 2; r++) pair[r] = x.pairs[min(e + (lane + 32 * r) / HPG, x.end - 1)];
    }
    DEVICE void load(const Arguments &a, const Work &x, int e, int lane) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = lane + 32 * r;
            shift[r] = __int_as_float(0x7f800000);
            delta[r] = 0.f;
            if (row < ROWS && e + row / HPG < x.end) {
                const long long at = ((long long)x.b * a.S + pair[r] / NTOP) * a.H + x.g * HPG + row % HPG;
                shift[r] = a.shift[at];
                delta[r] = a.delta[at];
            }
        }
    }
};

DEVICE void bring_rows(const Arguments &a, u32 base, int lane) {
    int step = 0;
    Work x(a);
    for (; x.find(a); x.next()) {
        Known now, then, after;
        Boxes<DVC> boxes, boxes_then;
        then.find(x, x.first, lane);
        after.find(x, x.first + TOKENS, lane);
        boxes_then.find(x, x.first, lane);
        then.load(a, x, x.first, lane);
        for (int e = x.first; e < x.end; e += TOKENS, step++) {
            now = then;
            then = after;
            then.load(a, x, e + TOKENS, lane);
            after.find(x, e + 2 * TOKENS, lane);
            boxes = boxes_then;
            boxes_then.find(x, e + TOKENS, lane);
            const u32 to = base + AT_ROWS + step % STAGES * BM * 8 + lane * 4;
            barrier_wait(bar_empty(base, step), step / STAGES & 1 ^ 1);
            ask(a, x, boxes, base, step, DKC, lane);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (lane + 32 * r >= BM) continue;
                store_one(to + r * 128, now.shift[r]);
                store_one(to + r * 128 + BM * 4, now.delta[r]);
            }
            barrier_arrive(bar_full(base, step));
        }
    }
}
