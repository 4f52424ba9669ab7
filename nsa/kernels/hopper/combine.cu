// Window and forced blocks, merged with the scored blocks' partial results and, by the gates, with the compressed branch.
//
// A work tile is two halves of 64 rows, the heads of a group times PER neighbouring tokens; as many blocks of threads as
// processors walk over the work tiles. One warp brings queries, keys and values by tensor maps, another one partial results. A
// warpgroup sums those by their weights and hands the sums over as what the forced blocks' attention goes on from; each of
// two warpgroups does the products of a half. So memory is read while products run, though each row needs both.
//
// Constants: DK, DV (multiples of 64), HPG (heads per group), NTOP (scored blocks of a token), W (window), BN (64: keys of a
// tile, and a block), REST (keys of the window's first tile, its oldest; a multiple of 16), STAGES, RING (partial results of 64
// rows on their way), KEPT (whether the output so far stays in shared memory: two warps bring the compressed branch's there and
// take the output away, each for a half), HALF.

constexpr int DKC = DK / 64, DVC = DV / 64, PER = 64 / HPG, TOKENS = 2 * PER;
constexpr int Q_BYTES = DKC * 8192, K_BYTES = DKC * 8192, V_BYTES = DVC * 8192, STATE_BYTES = 64 * DV * 4;
constexpr int AT_Q = 0, AT_K = AT_Q + 2 * Q_BYTES, AT_V = AT_K + STAGES * K_BYTES, AT_PARTS = AT_V + STAGES * V_BYTES;
constexpr int AT_KEPT = AT_PARTS + RING * V_BYTES, AT_STATE = AT_KEPT + 2 * KEPT * V_BYTES, AT_WEIGHTS = AT_STATE + STATE_BYTES;
constexpr int AT_SUMS = AT_WEIGHTS + NTOP * 128 * 4, AT_BARRIERS = AT_SUMS + 128 * 8;
static_assert(BN == 64 && HPG <= 64 && NTOP > 0, "sizes that are served");

struct Arguments {
    TensorMap q, k_sel, v_sel, k_win, v_win, parts, cmp, out;  // parts [pairs of this launch, S, NTOP * HPG, DV]
    const float *lse, *gates;                        // [pairs of this launch, S * NTOP, HPG]; [B, S, H, 3]
    const void *o_cmp;                               // [B, S, H, DV], as o, and o_sel and o_win if `save`
    void *o, *o_sel, *o_win;
    float *lse_sel, *lse_win;  // [B, S, H] if `save`
    int S, H, G, first, tiles, items, save;  // first pair of batch and group
    float scale2;
};

extern __shared__ __align__(1024) unsigned char shared[];

// The window of a work tile's tokens is a tile of REST keys and up to FULL tiles of BN.
constexpr int FULL = (W + TOKENS - 2) / BN;

// Scored blocks of a token: all that compete, as far as there are so many.
DEVICE int scored_of(int t) { return min(max(t / BN - 2, 0), NTOP); }

// A work tile: its tokens, and its tiles of keys. First come the blocks up to the tokens' own, the latest first, then block 0,
// then the window, which ends where the tokens do, its oldest keys and then the latest ones first.
struct Work {
    int round, pair, b, g, t0, last, newest, local, forced, steps;

    DEVICE Work() : round(0) {}
    DEVICE bool find(const Arguments &a) {
        const int item = round * gridDim.x + blockIdx.x;
        if (item >= a.items) return false;
        pair = item / a.tiles;
        b = (a.first + pair) / a.G;
        g = (a.first + pair) % a.G;
        t0 = item % a.tiles * TOKENS;
        last = min(t0 + TOKENS, a.S) - 1;
        newest = last / BN;
        const int oldest = max(t0 / BN - 1, 0);
        local = newest - oldest + 1;
        forced = local + (oldest > 0);
        steps = forced + 1 + min(FULL, newest + 1);
        return true;
    }
    DEVICE void next() { round++; }
    // A tile's first key. Of the window's first tile only the last REST keys count; before a short sequence there are none.
    DEVICE int key(int i) const {
        return i < local ? (newest - i) * BN : i < forced ? 0 : last + 1 - BN * (i > forced ? i - forced : FULL + 1);
    }
};

// Barriers: queries there and done with; for each half sums there; sums taken; for each stage keys there and done with, values
// there and done with; for each of the ring partial results there and done with; for each half the compressed branch's output
// there and the output there.
DEVICE u32 bar_q(u32 base) { return base + AT_BARRIERS; }
DEVICE u32 bar_state(u32 base, int half) { return base + AT_BARRIERS + 16 + half * 8; }
DEVICE u32 bar_taken(u32 base) { return base + AT_BARRIERS + 32; }
DEVICE u32 bar_k(u32 base, int step) { return base + AT_BARRIERS + 48 + step % STAGES * 32; }
DEVICE u32 bar_v(u32 base, int step) { return bar_k(base, step) + 16; }
DEVICE u32 bar_part(u32 base, int step) { return base + AT_BARRIERS + 48 + STAGES * 32 + step % RING * 16; }
DEVICE u32 bar_kept(u32 base, int half) { return base + AT_BARRIERS + 48 + STAGES * 32 + RING * 16 + half * 16; }
DEVICE int phase_of(int step) { return step / STAGES & 1; }

DEVICE void bring(const Arguments &a, u32 base) {
    int before = 0, count = 0;
    Work x;
    for (; x.find(a); x.next(), count++) {
        const u32 q = bar_q(base);
        barrier_wait(q + 8, count & 1 ^ 1);
        barrier_expect(q, 2 * DKC * PER * HPG * 128);
        for (int c = 0; c < 2 * DKC; c++)
            copy_box(base + AT_Q + c * 8192, &a.q, q, c % DKC * 64, x.g * HPG, x.t0 + c / DKC * PER, x.b);
        // Values come a step after their keys, as they are asked for.
        for (int i = 0; i <= x.steps; i++) {
            if (i < x.steps) {
                const int step = before + i;
                const u32 k = bar_k(base, step);
                barrier_wait(k + 8, phase_of(step) ^ 1);
                barrier_expect(k, K_BYTES);
                for (int c = 0; c < DKC; c++)
                    copy_box(base + AT_K + step % STAGES * K_BYTES + c * 8192, i < x.forced ? &a.k_sel : &a.k_win, k, c * 64,
                             x.key(i), x.g, x.b);
            }
            if (i > 0) {
                const int step = before + i - 1;
                const u32 v = bar_v(base, step);
                barrier_wait(v + 8, phase_of(step) ^ 1);
                barrier_expect(v, V_BYTES);
                for (int c = 0; c < DVC; c++)
                    copy_box(base + AT_V + step % STAGES * V_BYTES + c * 8192, i - 1 < x.forced ? &a.v_sel : &a.v_win, v, c * 64,
                             x.key(i - 1), x.g, x.b);
            }
        }
        before += x.steps;
    }
}

DEVICE void bring_parts(const Arguments &a, u32 base) {
    int step = 0;
    Work x;
    for (; x.find(a); x.next()) {
        const int most = scored_of(x.last);
        for (int i = 0; i < 2 * most; i++, step++) {
            const u32 bar = bar_part(base, step);
            barrier_wait(bar + 8, step / RING & 1 ^ 1);
            barrier_expect(bar, DVC * PER * HPG * 128);
            for (int c = 0; c < DVC; c++)
                copy_box(base + AT_PARTS + step % RING * V_BYTES + c * 8192, &a.parts, bar, c * 64, i % most * HPG,
                         x.t0 + i / most * PER, x.pair);
        }
    }
}

DEVICE void keep(const Arguments &a, u32 base, int half) {
    const u32 bar = bar_kept(base, half), there = base + AT_KEPT + half * V_BYTES;
    int count = 0;
    Work x;
    for (; x.find(a); x.next(), count++) {
        barrier_expect(bar, DVC * PER * HPG * 128);
        for (int c = 0; c < DVC; c++) copy_box(there + c * 8192, &a.cmp, bar, c * 64, x.g * HPG, x.t0 + half * PER, x.b);
        barrier_wait(bar + 8, count & 1);
        for (int c = 0; c < DVC; c++) put_box(&a.out, there + c * 8192, c * 64, x.g * HPG, x.t0 + half * PER, x.b);
        put_close();
        put_read();
    }
    put_done();
}

// Log-sum-exp of each scored block of thread i's row, minus infinity where there is none.
DEVICE void load_lse(float (&lse)[NTOP], const Arguments &a, const Work &x, int i) {
    const int t = x.t0 + i / 64 * PER + i % 64 / HPG, many = i % 64 < PER * HPG && t < a.S ? scored_of(t) : 0;
    const float *from = a.lse + ((long long)x.pair * a.S + t) * NTOP * HPG + i % 64 % HPG;
#pragma unroll
    for (int s = 0; s < NTOP; s++) lse[s] = s < many ? from[s * HPG] : __int_as_float(0xff800000);
}

// Adds partial results of 64 rows times the weights of a lane's two rows, as products hold them; what has no weight may be NaN.
DEVICE void add_part(float (&sum)[DV / 2], u32 part, int g, float weight0, float weight1) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const u32 there = part + ((j ^ g) << 4);
#pragma unroll
        for (int c = 0; c < DVC; c++) {
            const u32 x = load_word(there + c * 8192), y = load_word(there + c * 8192 + 1024);
            float(&to)[DV / 2] = sum;
            const int at = 4 * (8 * c + j);
            if (weight0 > 0.f) to[at] = fmaf(weight0, low_of(x), to[at]);
            if (weight0 > 0.f) to[at + 1] = fmaf(weight0, high_of(x), to[at + 1]);
            if (weight1 > 0.f) to[at + 2] = fmaf(weight1, low_of(y), to[at + 2]);
            if (weight1 > 0.f) to[at + 3] = fmaf(weight1, high_of(y), to[at + 3]);
        }
    }
}

DEVICE void merge(const Arguments &a, u32 base) {
    const int i = threadIdx.x % 128, lane = i % 32, warp = i / 32, g = lane / 4, t = lane % 4, row = 16 * warp + g;
    float lse[NTOP];
    int step = 0;
    Work x;
    bool more = x.find(a);
    if (more) load_lse(lse, a, x, i);
    while (more) {
        const int most = scored_of(x.last);
        float m = -1e30f, total = 0.f;
#pragma unroll
        for (int s = 0; s < NTOP; s++) m = fmaxf(m, lse[s]);
        sync_some<1, 128>();
#pragma unroll
        for (int s = 0; s < NTOP; s++) {
            const float weight = exp2_of(lse[s] - m);
            total += weight;
            store_one(base + AT_WEIGHTS + (s * 128 + i) * 4, weight);
        }
        sync_some<1, 128>();
        x.next();
        more = x.find(a);
        if (more) load_lse(lse, a, x, i);
        for (int half = 0; half < 2; half++) {
            float sum[DV / 2];
#pragma unroll
            for (int j = 0; j < DV / 2; j++) sum[j] = 0.f;
            for (int s = 0; s < most; s++, step++) {
                const u32 bar = bar_part(base, step), weights = base + AT_WEIGHTS + (s * 128 + 64 * half + row) * 4;
                barrier_wait(bar, step / RING & 1);
                add_part(sum, base + AT_PARTS + step % RING * V_BYTES + row * 128 + t * 4, g, load_one(weights), load_one(weights + 32));
                fence_async();
                __syncwarp();
                if (ARRIVES) barrier_arrive(bar + 8);
            }
            const u32 bar = bar_state(base, half), to = base + AT_STATE + i * 16;
            barrier_wait(bar_taken(base), half ^ 1);
#pragma unroll
            for (int j = 0; j < DV / 8; j++) store_four(to + j * 2048, sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
            if (i / 64 == half) store_two(base + AT_SUMS + i * 8, m, total);
            __syncwarp();
            if (ARRIVES) barrier_arrive(bar);
        }
    }
}

// What a lane's two rows have found so far.
struct State {
    float o[DV / 2], m[2], total[2];
};

// A lane's queries of its half, as operands: shared memory is left to keys, values and partial results.
typedef u32 Queries[DK / 16][4];

// Scores of the last N keys of a tile.
template <int N> DEVICE void scores(float (&s)[N / 2], const Queries &q, u32 base, int step) {
    const u64 k_rows = operand(base + AT_K + step % STAGES * K_BYTES + (BN - N) * 128, 16);
#pragma unroll
    for (int i = 0; i < DK / 16; i++)
        multiply<0>(s, q[i], further(k_rows, i / 4 * 8192 + i % 4 * 32), i > 0);
    products_close();
}

template <int N> DEVICE void add_values(float (&o)[DV / 2], const u32 (&p)[N / 16][4], u32 base, int step) {
    const u64 v_across = operand(base + AT_V + step % STAGES * V_BYTES + (BN - N) * 128, 8192);
#pragma unroll
    for (int i = 0; i < N / 16; i++) multiply<1>(o, p[i], further(v_across, i * 2048), 1);
    products_close();
}

// How many of a lane's columns of N, two of every eight, are before a column, less 2 * t.
template <int N> DEVICE int before_column(int n) { return max(0, min(2 * (n >> 3) + min(n & 7, 2), N / 4)); }

// Hides keys that a lane's rows, of `token`, do not see among the last N of tile `i` of the work tile's.
template <int N> DEVICE void hide_some(float (&s)[N / 2], const Work &x, int i, const int (&token)[2], int t) {
    const int n0 = x.key(i) + BN - N;
    const bool window = i >= x.forced, sink = !window && i >= x.local;
    if (sink || n0 + N <= x.t0 + 1 && (window ? n0 > max(x.last - W, -1) : n0 / BN >= x.last / BN - 1)) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int block = n0 / BN;
        const int from = (window ? max(token[h] - W + 1, 0) : block >= token[h] / BN - 1 || block == 0 ? n0 : n0 + N) - n0 - 2 * t;
        const u32 seen = ((1u << before_column<N>(token[h] + 1 - n0 - 2 * t)) - 1) >> before_column<N>(from) << before_column<N>(from);
#pragma unroll
        for (int j = 0; j < N / 4; j++)
            if (!(seen >> j & 1)) s[j / 2 * 4 + 2 * h + j % 2] = __int_as_float(0xff800000);
    }
}

// Asks for scores of a tile's last N keys, after those products that were asked for before.
template <int N> DEVICE void ask(float (&s)[N / 2], u32 base, const Queries &q, int step) {
    barrier_wait(bar_k(base, step), phase_of(step));
    products_begin();
    scores<N>(s, q, base, step);
}

// Scores of tile `i` are there: its keys are done with, and the first tile has all queries in registers.
DEVICE void scored(const Work &work, u32 base, int before, int i) {
    const int lane = threadIdx.x % 32;
    if (ARRIVES) {
        barrier_arrive(bar_k(base, before + i) + 8);
        if (i == 0) barrier_arrive(bar_q(base) + 8);
    }
}

// Probabilities `p` of tile `i` beside `add`, the product of the tile before's with its values.
template <class Add>
DEVICE void go_on(State &x, u32 (&p)[BN / 16][4], const Arguments &a, const Work &work, u32 base, const Queries &q, int before, int i,
                  const int (&token)[2], Add add) {
    const int lane = threadIdx.x % 32, step = before + i;
    float s[BN / 2], faded[2];
    ask<BN>(s, base, q, step);
    barrier_wait(bar_v(base, step - 1), phase_of(step - 1));
    products_begin();
    add(step - 1);
    products_wait<1>();
    scored(work, base, before, i);
    hide_some<BN>(s, work, i, token, lane % 4);
    const bool grows = soften<BN>(s, x.m, x.total, faded, a.scale2);
    after(x.total[0] + x.total[1]);
    products_wait<0>();
    if (ARRIVES) barrier_arrive(bar_v(base, step - 1) + 8);
    as_operand<BN>(p, s);
    if (grows) fade<DV>(x.o, faded);
}

// Attention over tiles `begin .. end` of the work tile's keys, on top of `x`. Scores of the first tile, its last FIRST keys, were asked
// for. Beside the last product `load` is run and, if NEXT, scores of the last NEXT keys of the tile behind are asked for.
template <int FIRST, int NEXT, class Load>
DEVICE void attend(State &x, float (&first)[FIRST / 2], float (&next)[NEXT / 2 + !NEXT], const Arguments &a, const Work &work, u32 base,
                   const Queries &q, int before, int begin, int end, const int (&token)[2], Load load) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    float faded[2];
    u32 p[BN / 16][4];
    products_wait<0>();
    scored(work, base, before, begin);
    hide_some<FIRST>(first, work, begin, token, t);
    if (soften<FIRST>(first, x.m, x.total, faded, a.scale2)) fade<DV>(x.o, faded);
    if constexpr (FIRST < BN) {
        u32 narrow[FIRST / 16][4];
        as_operand<FIRST>(narrow, first);
        go_on(x, p, a, work, base, q, before, ++begin, token, [&](int step) { add_values<FIRST>(x.o, narrow, base, step); });
    } else {
        as_operand<BN>(p, first);
    }
    for (int i = begin + 1; i < end; i++)
        go_on(x, p, a, work, base, q, before, i, token, [&](int step) { add_values<BN>(x.o, p, base, step); });
    const int step = before + end - 1;
    barrier_wait(bar_v(base, step), phase_of(step));
    products_begin();
    add_values<BN>(x.o, p, base, step);
    if constexpr (NEXT > 0) ask<NEXT>(next, base, q, step + 1);
    load();
    products_wait<0>();
    if (ARRIVES) barrier_arrive(bar_v(base, step) + 8);
}

// Row `h` of a lane's two times `own`, and `x` times `other`.
DEVICE void mix(float (&o)[DV / 2], int h, const u32 (&x)[DV / 8], float other, float own) {
#pragma unroll
    for (int j = 0; j < DV / 8; j++) {
        o[4 * j + 2 * h] = fmaf(own, o[4 * j + 2 * h], other * low_of(x[j]));
        o[4 * j + 2 * h + 1] = fmaf(own, o[4 * j + 2 * h + 1], other * high_of(x[j]));
    }
}

// The same of both rows with what is kept of them, which the result replaces.
DEVICE void mix_kept(const float (&o)[DV / 2], u32 kept, int g, const float (&other)[2], const float (&own)[2]) {
#pragma unroll
    for (int c = 0; c < DVC; c++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32 there = kept + ((j ^ g) << 4) + c * 8192 + h * 1024, x = load_word(there);
                const int at = 4 * (8 * c + j) + 2 * h;
                store_word(there, pack(fmaf(own[h], o[at], other[h] * low_of(x)), fmaf(own[h], o[at + 1], other[h] * high_of(x))));
            }
}

// Takes over what merge() left for this lane.
DEVICE void take(State &x, u32 base, int half, int g, int t, int warp) {
    const u32 from = base + AT_STATE + threadIdx.x % 128 * 16;
#pragma unroll
    for (int j = 0; j < DV / 8; j++) load_four(from + j * 2048, x.o[4 * j], x.o[4 * j + 1], x.o[4 * j + 2], x.o[4 * j + 3]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float2 sums = load_two(base + AT_SUMS + (64 * half + 16 * warp + g + 8 * h) * 8);
        x.m[h] = sums.x;
        x.total[h] = t == 0 ? sums.y : 0.f;  // A row's total is what its four lanes hold together.
    }
}

DEVICE void consume(const Arguments &a, u32 base, int half) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
    const u32 q_rows = base + AT_Q + half * Q_BYTES + (16 * warp + lane % 16) * 128;
    const u32 kept = base + AT_KEPT + half * V_BYTES + (16 * warp + g) * 128 + t * 4;
    int before = 0, count = 0;
    Work work;
    for (; work.find(a); work.next(), count++) {
        State x;
        int token[2];
        bool inside[2];
        u32 row[2];  // of all tokens' heads
        float s[BN / 2], of_window[REST / 2], none[1], gates[2][3];
        Queries q;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = 16 * warp + g + 8 * h;
            token[h] = work.t0 + half * PER + r / HPG;
            inside[h] = r < PER * HPG && token[h] < a.S;
            row[h] = ((u32)work.b * a.S + token[h]) * a.H + work.g * HPG + r % HPG;
            if (!KEPT && inside[h] && t < DVC) prefetch_line((const u32 *)a.o_cmp + (u64)row[h] * (DV / 2) + t * 32);
#pragma unroll
            for (int i = 0; i < 3; i++) gates[h][i] = inside[h] ? a.gates[(u64)row[h] * 3 + i] : 0.f;
        }
        barrier_wait(bar_state(base, half), count & 1);
        take(x, base, half, g, t, warp);
        __syncwarp();
        if (ARRIVES) barrier_arrive(bar_taken(base));
        barrier_wait(bar_q(base), count & 1);
#pragma unroll
        for (int i = 0; i < DK / 16; i++) load_matrices(q[i], q_rows + i / 4 * 8192 + ((2 * (i % 4) + lane / 16 ^ lane % 8) << 4));
        ask<BN>(s, base, q, before);
        u32 found[2][DV / 8];
        const auto load = [&](const void *from) {
#pragma unroll
            for (int h = 0; h < 2 && !KEPT; h++) load_row<DV>(found[h], (const u32 *)from + (u64)row[h] * (DV / 2), t, inside[h]);
        };
        if constexpr (KEPT)
            attend<BN, REST>(x, s, of_window, a, work, base, q, before, 0, work.forced, token, [] {});
        else
            attend<BN, 0>(x, s, none, a, work, base, q, before, 0, work.forced, token, [&] { load(a.o_cmp); });
        float own[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = sum_of_four(x.total[h]), scale = sum > 0.f ? 1.f / sum : 0.f;
            if (a.save) {
                if (inside[h] && t == 0) a.lse_sel[row[h]] = sum > 0.f ? x.m[h] + log2f(sum) : -1e30f;
                store_row<DV>((u32 *)a.o_sel + (u64)row[h] * (DV / 2), x.o, h, t, scale, inside[h]);
            }
            own[h] = gates[h][1] * scale;
            x.m[h] = -1e30f;
            x.total[h] = 0.f;
        }
        // Kept meanwhile in shared memory or where the output goes: the registers are wanted for the window.
        if (KEPT) {
            barrier_wait(bar_kept(base, half), count & 1);
            mix_kept(x.o, kept, g, {gates[0][0], gates[1][0]}, own);
        }
#pragma unroll
        for (int h = 0; h < 2 && !KEPT; h++) {
            mix(x.o, h, found[h], gates[h][0], own[h]);
            store_row<DV>((u32 *)a.o + (u64)row[h] * (DV / 2), x.o, h, t, 1.f, inside[h]);
        }
#pragma unroll
        for (int j = 0; j < DV / 2; j++) x.o[j] = 0.f;
        if (!KEPT) ask<REST>(of_window, base, q, before + work.forced);
        attend<REST, 0>(x, of_window, none, a, work, base, q, before, work.forced, work.steps, token, [&] { load(a.o); });
        before += work.steps;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float sum = sum_of_four(x.total[h]), scale = sum > 0.f ? 1.f / sum : 0.f;
            if (a.save) {
                if (inside[h] && t == 0) a.lse_win[row[h]] = sum > 0.f ? x.m[h] + log2f(sum) : -1e30f;
                store_row<DV>((u32 *)a.o_win + (u64)row[h] * (DV / 2), x.o, h, t, scale, inside[h]);
            }
            own[h] = gates[h][2] * scale;
        }
        if (KEPT) {
            mix_kept(x.o, kept, g, {1.f, 1.f}, own);
            fence_async();
            __syncwarp();
            if (ARRIVES) barrier_arrive(bar_kept(base, half) + 8);
        }
#pragma unroll
        for (int h = 0; h < 2 && !KEPT; h++) {
            mix(x.o, h, found[h], 1.f, own[h]);
            store_row<DV>((u32 *)a.o + (u64)row[h] * (DV / 2), x.o, h, t, 1.f, inside[h]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(512, 1) combine(const __grid_constant__ Arguments a) {
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        const TensorMap *maps = &a.q;
        for (int i = 0; i < 6 + 2 * KEPT; i++) prefetch_map(maps + i);
        barrier_init(bar_q(base), 1);
        barrier_init(bar_q(base) + 8, 8 * ARRIVALS);
        for (int i = 0; i < 2; i++) barrier_init(bar_state(base, i), 4 * ARRIVALS);
        barrier_init(bar_taken(base), 4 * ARRIVALS);
        for (int i = 0; i < 2 * STAGES; i++) {
            barrier_init(bar_k(base, 0) + i * 16, 1);
            barrier_init(bar_k(base, 0) + i * 16 + 8, 8 * ARRIVALS);
        }
        for (int i = 0; i < RING; i++) {
            barrier_init(bar_part(base, i), 1);
            barrier_init(bar_part(base, i) + 8, 4 * ARRIVALS);
        }
        for (int i = 0; i < 2 * KEPT; i++) {
            barrier_init(bar_kept(base, i), 1);
            barrier_init(bar_kept(base, i) + 8, 4 * ARRIVALS);
        }
        barrier_init_done();
    }
    __syncthreads();
    // In this order: with any other the assembler takes no notice of who has how many registers.
    if (warp >= 8) {
        take_registers<192>();
        consume(a, base, warp / 4 - 2);
    } else if (warp >= 4) {
        give_registers<104>();
        merge(a, base);
    } else {
        give_registers<24>();
        if (lane == 0 && warp == 0) bring(a, base);
        if (lane == 0 && warp == 1) bring_parts(a, base);
        if (KEPT && lane == 0 && warp > 1) keep(a, base, warp - 2);
    }
}
