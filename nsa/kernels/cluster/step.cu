// A whole decode step of one batch row and group by one thread block cluster.
//
// The P blocks of a cluster are on the GPU at the same time and reach each other's shared memory, so what they must
// tell each other passes through it and through the cluster's barrier: no memory is polled, and there may be more
// clusters than fit at once. Three barriers divide the step (a fourth tells that all blocks have begun):
//
//   keys of the compressed branch -> sums of weights -> barrier -> importance of blocks, the best of each share ->
//   barrier -> the best of all, attention to them -> partial outputs -> barrier -> output
//
// The window, and values of the compressed branch, fill the waits. A share is a run of selection blocks, with the
// compressed tokens that begin in them; a warp takes a run of those, and loads rows for itself alone through a ring of
// stages, so that nothing waits for the block. Copies are asked for long before they are needed, those of keys first.
//
// Constants, by -D: HALF (elements are float16, else bfloat16), GATE_ELEMENTS (gates are elements, else float), G, HPG
// heads per group, DK, DV, L, STRIDE, LS, NSEL, P blocks in a cluster, TOKENS compressed tokens that a block can hold (a
// multiple of 128), WINDOW slots of the window's ring at most, STAGES of a warp's ring.
//
// Fragments follow PTX's mma.m16n8k16: keys are its 16 rows and heads its 8 columns, so a group of few heads wastes
// little. A thread holds rows lane / 4 and lane / 4 + 8, columns 2 * (lane % 4) and the next.

constexpr int WARPS = 8, THREADS = 32 * WARPS, ROWS = 16;
constexpr int TILES_OF_HEADS = (HPG + 7) / 8, HEADS = 8 * TILES_OF_HEADS;
constexpr int M = LS / STRIDE, C = L / STRIDE - 1;
constexpr int NTOP = NSEL - 3;
constexpr int ALL_WARPS = P * WARPS;
constexpr int MOST_CHUNKS = TOKENS / (WARPS * ROWS);  // of compressed tokens, per warp
constexpr int WINDOW_TILES = (WINDOW + ROWS * ALL_WARPS - 1) / (ROWS * ALL_WARPS);  // per warp
constexpr int TILES_OF_BLOCK = (LS + ROWS - 1) / ROWS;
constexpr int SELECTED_TILES = (NSEL * TILES_OF_BLOCK + ALL_WARPS - 1) / ALL_WARPS;  // per warp
constexpr int COLUMNS = (DV + P - 1) / P;  // of the output, per block

DEVICE constexpr int max_of(int a, int b) { return a > b ? a : b; }
DEVICE constexpr int min_of(int a, int b) { return a < b ? a : b; }
DEVICE constexpr int aligned(int n) { return (n + 15) / 16 * 16; }

// Whether values of the compressed branch may stay in the ring while selected blocks are loaded.
constexpr bool ROOM = STAGES >= MOST_CHUNKS + 2 * WINDOW_TILES && STAGES >= MOST_CHUNKS + 2;
constexpr int AT_ONCE = min_of(SELECTED_TILES, max_of((ROOM ? STAGES - MOST_CHUNKS : STAGES) / 2, 1));

// Shared memory, in bytes. A warp's part of SCORES later holds its part of the output.
constexpr int STAGE = ROWS * max_of(DK, DV) * 2;
constexpr int RING = 0;
constexpr int WARP_RING = STAGES * STAGE;
constexpr int SCORES = RING + WARPS * WARP_RING;
constexpr int WARP_SCORES = max_of(MOST_CHUNKS * ROWS, DV) * HEADS * 4;
constexpr int BASE_IN = SCORES + WARPS * WARP_SCORES;
constexpr int CHOSEN_IN = BASE_IN + P * COLUMNS * HEADS * 4;
constexpr int SUMS_IN = CHOSEN_IN + P * COLUMNS * HEADS * 4;
constexpr int SUMS = SUMS_IN + P * HEADS * 8;
constexpr int WEIGHTS = SUMS + WARPS * HEADS * 8;
constexpr int LSE_CMP = aligned(WEIGHTS + (C + TOKENS) * 4);
constexpr int LSE_WIN = LSE_CMP + ALL_WARPS * HEADS * 4;
constexpr int EDGE = LSE_WIN + ALL_WARPS * HEADS * 4;
constexpr int KEYS = aligned(EDGE + max_of(C, 1) * HEADS * 4);
constexpr int CANDIDATES = (P * NTOP + 3) / 4 * 4;
constexpr int BEST = KEYS + WARPS * NTOP * 8;
constexpr int CHOSEN = BEST + CANDIDATES * 8;
constexpr int SHARED_BYTES = CHOSEN + aligned(max_of(NTOP, 1) * 4);

static_assert(WARP_RING >= DV * HEADS * 4, "a warp's output must fit into its ring");
static_assert(P <= 8 && DK % 64 == 0 && DV % 64 == 0 && THREADS % HEADS == 0 && C <= ROWS, "not served");
static_assert(TOKENS % (WARPS * ROWS) == 0 && WARPS * ROWS % M == 0 && NTOP <= 32, "not served");

constexpr float NONE = -1e30f;

template <class T> DEVICE T &at(int offset) { return *reinterpret_cast<T *>(shared + offset); }

// A query's heads as the second factor of a product with keys.
struct Query { u32 x[TILES_OF_HEADS][DK / 16][2]; };

// What a warp has of a branch: per head maximum, this thread's sum of weights, and values times weights.
struct Part {
    float m[TILES_OF_HEADS][2], l[TILES_OF_HEADS][2], acc[TILES_OF_HEADS][DV / 16][4];

    DEVICE void clear() {
#pragma unroll
        for (int n = 0; n < TILES_OF_HEADS; n++) {
            m[n][0] = m[n][1] = NONE;
            l[n][0] = l[n][1] = 0.0f;
#pragma unroll
            for (int v = 0; v < DV / 16; v++) acc[n][v][0] = acc[n][v][1] = acc[n][v][2] = acc[n][v][3] = 0.0f;
        }
    }
};

// Rows of a cache for one batch row and group; row `newest` is the new position's and comes from `fresh`.
struct Rows {
    const u16 *base, *fresh;
    int newest;
};

// Over the eight threads that hold the same columns.
DEVICE float max_over_rows(float x) {
    x = fmaxf(x, shuffle_xor(x, 4));
    x = fmaxf(x, shuffle_xor(x, 8));
    return fmaxf(x, shuffle_xor(x, 16));
}
DEVICE float sum_over_rows(float x) {
    x += shuffle_xor(x, 4);
    x += shuffle_xor(x, 8);
    return x + shuffle_xor(x, 16);
}
DEVICE float lse_of(float m, float l) { return l > 0.0f ? m + log2_of(l) : NONE; }

// Sixteen-byte pieces are swizzled so that eight rows of a matrix lie in different banks.
template <int DIM> DEVICE int piece(int row, int i) { return row * DIM * 2 + ((i ^ (row & 7)) << 4); }

// Start loading rows first ... first + 15 that lie below `end`; the others become zero.
template <int DIM> RARELY void load_any_rows(int stage, const u16 *base, const u16 *fresh, int newest, int first, int end) {
#pragma unroll 1
    for (int i = thread_index() % 32; i < ROWS * DIM / 8; i += 32) {
        const int r = i / (DIM / 8), c = i % (DIM / 8), row = first + r;
        const u16 *from = row == newest ? fresh : base + row * (G * DIM);
        copy_later(stage + piece<DIM>(r, c), from + 8 * c, row < end);
    }
}

// The same in few instructions where none of the rows is the newest: a lane's places are alike in every pass.
template <int DIM> DEVICE void load_rows(int stage, const Rows &rows, int first, int end) {
    constexpr int PIECES = DIM / 8, TOGETHER = max_of(32 / PIECES, 1);
    if (32 % PIECES || (u32)(rows.newest - first) < ROWS) {
        load_any_rows<DIM>(stage, rows.base, rows.fresh, rows.newest, first, end);
        return;
    }
    const int lane = thread_index() % 32, r = lane / PIECES, c = lane % PIECES, left = end - first - r;
    const u16 *from = rows.base + (first + r) * (G * DIM) + 8 * c;
    const int to = stage + r * DIM * 2, place = (c ^ r) << 4;
#pragma unroll
    for (int k = 0; k < ROWS / TOGETHER; k++) {
        const int down = TOGETHER * k;
        copy_later(to + down * DIM * 2 + (place ^ (down & 7) << 4), from + down * (G * DIM), down < left);
    }
}

// Scores [16 keys, heads] of a stage of keys, not yet scaled. Two sums, for the next product waits for the one before.
DEVICE void scores_of(float (&s)[TILES_OF_HEADS][4], int stage, const Query &q) {
    const int lane = thread_index() % 32, row = lane % 16, half = lane / 16;
    float odd[TILES_OF_HEADS][4];
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = odd[n][i] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < DK / 16; k++) {
        u32 a[4];
        load_matrices(a, stage + piece<DK>(row, 2 * k + half));
#pragma unroll
        for (int n = 0; n < TILES_OF_HEADS; n++) multiply_add(k % 2 ? odd[n] : s[n], a, q.x[n][k]);
    }
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] += odd[n][i];
    }
}

// Add weights w [16 keys, heads] times a stage of values.
DEVICE void add_values(Part &part, const float (&w)[TILES_OF_HEADS][4], int stage) {
    const int lane = thread_index() % 32, row = lane / 16 * 8 + lane % 8, half = lane / 8 % 2;
    u32 b[TILES_OF_HEADS][2];
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
        b[n][0] = transpose(pack(w[n][0], w[n][1]));
        b[n][1] = transpose(pack(w[n][2], w[n][3]));
    }
#pragma unroll
    for (int v = 0; v < DV / 16; v++) {
        u32 a[4];
        load_matrices_transposed(a, stage + piece<DV>(row, 2 * v + half));
#pragma unroll
        for (int n = 0; n < TILES_OF_HEADS; n++) multiply_add(part.acc[n][v], a, b[n]);
    }
}

// Add a tile of 16 keys and values, of which the first `count` are there.
DEVICE void attend(Part &part, const Query &q, int keys, int values, int count, float scale) {
    const int row = thread_index() % 32 / 4;
    float s[TILES_OF_HEADS][4];
    scores_of(s, keys, q);
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float low = row < count ? s[n][i] * scale : -INFINITY;
            const float high = row + 8 < count ? s[n][i + 2] * scale : -INFINITY;
            const float m = fmaxf(part.m[n][i], max_over_rows(fmaxf(low, high)));
            const float shrink = exp2_of(part.m[n][i] - m);
            s[n][i] = exp2_of(low - m);
            s[n][i + 2] = exp2_of(high - m);
            part.l[n][i] = part.l[n][i] * shrink + s[n][i] + s[n][i + 2];
            part.m[n][i] = m;
#pragma unroll
            for (int v = 0; v < DV / 16; v++) {
                part.acc[n][v][i] *= shrink;
                part.acc[n][v][i + 2] *= shrink;
            }
        }
    }
    add_values(part, s, values);
}

// The logarithm of the whole cluster's sum of weights, for this thread's two columns of heads.
DEVICE void joint_lse(float (&lse)[TILES_OF_HEADS][2], int of) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
        float2 x[P];
        float2 m = {NONE, NONE}, sum = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < P; i++) {
            x[i] = at<float2>(of + ((lane / 4 + 8 * i) * HEADS + 8 * n + lane % 4 * 2) * 4);
            m.x = fmaxf(m.x, x[i].x);
            m.y = fmaxf(m.y, x[i].y);
        }
        m.x = max_over_rows(m.x);
        m.y = max_over_rows(m.y);
#pragma unroll
        for (int i = 0; i < P; i++) {
            sum.x += exp2_of(x[i].x - m.x);
            sum.y += exp2_of(x[i].y - m.y);
        }
        lse[n][0] = m.x + log2_of(sum_over_rows(sum.x));
        lse[n][1] = m.y + log2_of(sum_over_rows(sum.y));
    }
}

// Tell every block of the cluster this warp's logarithms: eight threads hold the same ones, each tells one block.
DEVICE void tell_lse(int of, const float (&lse)[TILES_OF_HEADS][2]) {
    const int lane = thread_index() % 32, warp = thread_index() / 32, to = lane / 4;
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
        const int h = 8 * n + lane % 4 * 2;
        if (to < P) store_remote(of + ((cluster_rank() * WARPS + warp) * HEADS + h) * 4, to, lse[n][0], lse[n][1]);
    }
}

// Of two lanes `distance` apart the first gets the larger number if `down`, else the smaller one.
DEVICE void exchange(u64 &x, int distance, bool down) {
    const u64 other = shuffle_xor(x, distance);
    const bool larger_one = ((thread_index() & distance) == 0) == down;
    x = larger_one == (x < other) ? other : x;
}

// Sort a warp's numbers, the largest first; bitonic.
DEVICE void sort_warp(u64 &x) {
#pragma unroll
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll
        for (int distance = size / 2; distance; distance /= 2) exchange(x, distance, (thread_index() & size & 31) == 0);
}

// The 32 largest of two sorted warps of numbers, sorted.
DEVICE void merge_warp(u64 &x, u64 y) {
    const u64 other = shuffle_xor(y, 31);
    x = x < other ? other : x;
#pragma unroll
    for (int distance = 16; distance; distance /= 2) exchange(x, distance, true);
}

// How many of COUNT numbers, a multiple of 4, are larger than x. Two neighboring threads ask the same and share the work.
template <int COUNT> DEVICE int larger(int numbers, u64 x) {
    int found = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        const Two two = at<Two>(numbers + 8 * (i + thread_index() % 2 * 2));
        found += (two.x > x) + (two.y > x);
    }
    return found + shuffle_xor(found, 1);
}

// Store a part's values at `offset` as [DV, HEADS], each head times its factor, and other's with theirs.
DEVICE void store_part(int offset, const Part &part, const float (&factor)[TILES_OF_HEADS][2], const Part *other,
                       const float (&others)[TILES_OF_HEADS][2]) {
    const int lane = thread_index() % 32;
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
        for (int v = 0; v < DV / 16; v++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float2 x = {part.acc[n][v][2 * r] * factor[n][0], part.acc[n][v][2 * r + 1] * factor[n][1]};
                if (other) {
                    x.x += other->acc[n][v][2 * r] * others[n][0];
                    x.y += other->acc[n][v][2 * r + 1] * others[n][1];
                }
                at<float2>(offset + ((16 * v + 8 * r + lane / 4) * HEADS + 8 * n + lane % 4 * 2) * 4) = x;
            }
        }
    }
}

DEVICE float gate_of(const void *gates, long long i) {
#if GATE_ELEMENTS
    return unpack(static_cast<const u16 *>(gates)[i]);
#else
    return static_cast<const float *>(gates)[i];
#endif
}

DEVICE float low_of(u32 x) { return unpack((u16)x); }
DEVICE float high_of(u32 x) { return unpack((u16)(x >> 16)); }

// One warp: the means of the last L raw rows, the newest of them `fresh`, into row `to` of the caches; all at once.
struct Completed { const u16 *raw, *fresh; u16 *to; };
DEVICE void complete(const Completed &k, const Completed &v, int t) {
    for (int i = thread_index() % 32; i < (DK + DV) / 4; i += 32) {
        const bool key = i < DK / 4;
        const int c = 4 * (key ? i : i - DK / 4), stride = G * (key ? DK : DV);
        const u16 *raw = (key ? k.raw : v.raw) + c;
        const Eight newest = *reinterpret_cast<const Eight *>((key ? k.fresh : v.fresh) + c);
        float sum[4] = {low_of(newest.x), high_of(newest.x), low_of(newest.y), high_of(newest.y)};
#pragma unroll 32
        for (int slot = 0; slot < L; slot++) {
            const Eight row = *reinterpret_cast<const Eight *>(raw + slot * stride);
            if (slot == t % L) continue;
            sum[0] += low_of(row.x);
            sum[1] += high_of(row.x);
            sum[2] += low_of(row.y);
            sum[3] += high_of(row.y);
        }
        const Eight mean = {pack(sum[0] * (1.0f / L), sum[1] * (1.0f / L)), pack(sum[2] * (1.0f / L), sum[3] * (1.0f / L))};
        *reinterpret_cast<Eight *>((key ? k.to : v.to) + c) = mean;
    }
}

struct Cache { u16 *k, *v; };
struct Fresh { const u16 *k, *v; long long k_stride, v_stride; };

struct Arguments {
    const u16 *q;              // [B, 1, H, DK]
    long long q_row, q_head;   // strides
    const void *gates;         // [B, 1, H, 3]
    Fresh fresh[3];            // the new position's raw, selected and window rows, [B, 1, G, .]
    Cache raw, cmp, sel, win;  // [B, length, G, .]
    int n_cmp, n_sel, n_win;   // lengths of the last three
    int *lengths;              // [B, G] positions before the step; counted up
    int *top;                  // [B, 1, G, NTOP]
    u16 *o;                    // [B, 1, H, DV]
    float scale;               // of the scores, times log2(e)
};

extern "C" __global__ void __cluster_dims__(P, 1, 1) __launch_bounds__(THREADS, 1)
decode_step(const __grid_constant__ Arguments a) {
    const int thread = thread_index(), lane = thread % 32, warp = thread / 32, rank = cluster_rank();
    const int group = cluster_index(), b = group / G, g = group % G, everyone = rank + P * warp;
    const int ring = RING + warp * WARP_RING, scores = SCORES + warp * WARP_SCORES;
    cluster_arrive();
    let_next_begin();
    wait_for_previous();
    const int held = a.lengths[group];

    Query q;
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
        const int h = 8 * n + lane / 4;
        const u16 *from = a.q + b * a.q_row + (g * HPG + h) * a.q_head + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < DK / 16; k++) {
            q.x[n][k][0] = h < HPG ? *reinterpret_cast<const u32 *>(from + 16 * k) : 0;
            q.x[n][k][1] = h < HPG ? *reinterpret_cast<const u32 *>(from + 16 * k + 8) : 0;
        }
    }
    const bool fits = held < a.n_sel;
    const int t = min(held, a.n_sel - 1), own = t / LS;
    const int seen = t + 1 < L ? 0 : (t + 1 - L) / STRIDE + 1;
    const int in_window = min(t + 1, a.n_win);
    // Shares follow the length as it is, so that a short text in a large cache is shared as well.
    constexpr int STEP = WARPS * ROWS / M;
    const int blocks = ((own + P) / P + STEP - 1) / STEP * STEP, first_block = rank * blocks;
    const int chunks = blocks / STEP, per_warp = chunks * ROWS, first_token = first_block * M + warp * per_warp;

    const Rows k_cmp = {a.cmp.k + ((long long)b * a.n_cmp * G + g) * DK, nullptr, -1};
    const Rows v_cmp = {a.cmp.v + ((long long)b * a.n_cmp * G + g) * DV, nullptr, -1};
    const Fresh &new_sel = a.fresh[1], &new_win = a.fresh[2];
    const Rows k_win = {a.win.k + ((long long)b * a.n_win * G + g) * DK, new_win.k + b * new_win.k_stride + g * DK,
                        fits ? t % a.n_win : -1};
    const Rows v_win = {a.win.v + ((long long)b * a.n_win * G + g) * DV, new_win.v + b * new_win.v_stride + g * DV,
                        k_win.newest};
    const Rows k_sel = {a.sel.k + ((long long)b * a.n_sel * G + g) * DK, new_sel.k + b * new_sel.k_stride + g * DK,
                        fits ? t : -1};
    const Rows v_sel = {a.sel.v + ((long long)b * a.n_sel * G + g) * DV, new_sel.v + b * new_sel.v_stride + g * DV,
                        k_sel.newest};
    const u16 *raw_k = a.fresh[0].k + b * a.fresh[0].k_stride + g * DK;
    const u16 *raw_v = a.fresh[0].v + b * a.fresh[0].v_stride + g * DV;
    u16 *ring_k = a.raw.k + ((long long)b * L * G + g) * DK, *ring_v = a.raw.v + ((long long)b * L * G + g) * DV;

    // The warp that reads the compressed token which this position completes makes it.
    if (fits && seen > 0 && (t + 1 - L) % STRIDE == 0 && seen - 1 >= first_token && seen - 1 < first_token + per_warp) {
        complete({ring_k, raw_k, a.cmp.k + (((long long)b * a.n_cmp + seen - 1) * G + g) * DK},
                 {ring_v, raw_v, a.cmp.v + (((long long)b * a.n_cmp + seen - 1) * G + g) * DV}, t);
        sync_warp();
    }

    // The ring's order: keys of the compressed branch, window, values of the compressed branch.
    const int values_at = chunks + 2 * WINDOW_TILES, end_at = values_at + chunks;
    const auto fetch = [&](int i) {
        const int stage = ring + i % STAGES * STAGE;
        if (i < chunks) {
            load_rows<DK>(stage, k_cmp, first_token + ROWS * i, seen);
        } else if (i < values_at) {
            const int first = ROWS * (everyone + ALL_WARPS * ((i - chunks) / 2));
            if (first < in_window) {
                if ((i - chunks) % 2 == 0) load_rows<DK>(stage, k_win, first, in_window);
                else load_rows<DV>(stage, v_win, first, in_window);
            }
        } else if (i < end_at) {
            load_rows<DV>(stage, v_cmp, first_token + ROWS * (i - values_at), seen);
        }
    };
    const auto load = [&](int i) {
        fetch(i);
        close_group();
    };
    // Memory is to bring all keys first. Where there is room, the window is asked for when the first ones are there, and
    // values while blocks tell each other their sums.
    for (int i = 0; i < STAGES; i++) {
        if (!ROOM || i < chunks) fetch(i);
        close_group();
    }

    for (int i = thread; i < CANDIDATES; i += THREADS) at<u64>(BEST + 8 * i) = 0;
    for (int i = thread; i < NTOP; i += THREADS) at<int>(CHOSEN + 4 * i) = -1;
    for (int i = thread; i < C * HEADS; i += THREADS) if (rank == 0) at<float>(EDGE + 4 * i) = -INFINITY;

    // Keys of the compressed branch: scores, and each thread its own maximum and sum.
    Part cmp;
    cmp.clear();
    for (int i = 0; i < chunks; i++) {
        wait_group<STAGES - 1>();
        sync_warp();
        if (ROOM && i == 0) {
            for (int w = chunks; w < values_at; w++) fetch(w);
        }
        float s[TILES_OF_HEADS][4];
        scores_of(s, ring + i % STAGES * STAGE, q);
        const int row = lane / 4, n_there = seen - first_token - ROWS * i;
#pragma unroll
        for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++) s[n][j] = row + j / 2 * 8 < n_there ? s[n][j] * a.scale : -INFINITY;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float m = fmaxf(cmp.m[n][j], fmaxf(s[n][j], s[n][j + 2]));
                cmp.l[n][j] = cmp.l[n][j] * exp2_of(cmp.m[n][j] - m) + exp2_of(s[n][j] - m) + exp2_of(s[n][j + 2] - m);
                cmp.m[n][j] = m;
                const float2 x = {s[n][2 * j], s[n][2 * j + 1]};
                at<float2>(scores + ((ROWS * i + row + 8 * j) * HEADS + 8 * n + lane % 4 * 2) * 4) = x;
            }
        }
        sync_warp();
        if (!ROOM) fetch(i + STAGES);
        close_group();
    }
    float lse[TILES_OF_HEADS][2];
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float m = max_over_rows(cmp.m[n][j]);
            cmp.l[n][j] = sum_over_rows(cmp.l[n][j] * exp2_of(cmp.m[n][j] - m));
            cmp.m[n][j] = m;
            lse[n][j] = lse_of(m, cmp.l[n][j]);
        }
    }
    cluster_wait();  // all blocks have begun, so their memory can be written
    tell_lse(LSE_CMP, lse);
    if (warp == WARPS - 1 && rank + 1 < P) {
        for (int i = lane; i < C * HEADS; i += 32)
            store_remote(EDGE + 4 * i, rank + 1, at<float>(scores + ((per_warp - 1 - i / HEADS) * HEADS + i % HEADS) * 4));
    }
    cluster_arrive();
    if (ROOM) {
        for (int i = values_at; i < end_at; i++) fetch(i);
        close_group();
        wait_group<1>();  // all but the values
        sync_warp();
    }

    Part win;
    win.clear();
    for (int i = chunks; i < values_at; i += 2) {
        if (!ROOM) {
            wait_group<STAGES - 2>();
            sync_warp();
        }
        const int first = ROWS * (everyone + ALL_WARPS * ((i - chunks) / 2));
        if (first < in_window)
            attend(win, q, ring + i % STAGES * STAGE, ring + (i + 1) % STAGES * STAGE, in_window - first, a.scale);
        if (!ROOM) {
            sync_warp();
            load(i + STAGES);
            load(i + 1 + STAGES);
        }
    }
    float lse_win[TILES_OF_HEADS][2];
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) lse_win[n][j] = lse_of(win.m[n][j], sum_over_rows(win.l[n][j]));
    }

    cluster_wait();
    if (rank == 0 && thread == 0) a.lengths[group] = t + 1;  // all have read it
    tell_lse(LSE_WIN, lse_win);
    joint_lse(lse, LSE_CMP);

    // Weights of the compressed tokens, heads summed; then of the blocks they reach into.
    constexpr int AT_A_TIME = 4;
    const auto weights_of = [&](float (&w)[AT_A_TIME], int offset, int first, int count) {
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            const int token = min(first + 8 * i + lane / 4, count - 1);
            w[i] = 0.0f;
#pragma unroll
            for (int n = 0; n < TILES_OF_HEADS; n++) {
                const int h = 8 * n + lane % 4 * 2;
                const float2 x = at<float2>(offset + (token * HEADS + h) * 4);
                w[i] += (h < HPG ? exp2_of(x.x - lse[n][0]) : 0.0f) + (h + 1 < HPG ? exp2_of(x.y - lse[n][1]) : 0.0f);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) w[i] += shuffle_xor(w[i], 1);
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) w[i] += shuffle_xor(w[i], 2);
    };
    for (int first = 0; first < per_warp; first += 8 * AT_A_TIME) {
        float w[AT_A_TIME];
        weights_of(w, scores, first, per_warp);
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            const int token = first + 8 * i + lane / 4;
            if (lane % 4 == 0 && token < per_warp) at<float>(WEIGHTS + (C + warp * per_warp + token) * 4) = w[i];
        }
    }
    if (C > 0 && warp == 0) {
        float w[AT_A_TIME];
        weights_of(w, EDGE, 0, C);
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            const int back = 8 * i + lane / 4;
            if (lane % 4 == 0 && back < C) at<float>(WEIGHTS + (C - 1 - back) * 4) = w[i];
        }
    }
    sync_block();
    if (NTOP > 0) {
        u64 best = 0;
        for (int first = 32 * warp; first < blocks; first += THREADS) {
            const int i = first + lane, block = first_block + i;
            u64 key = 0;
            if (i < blocks && block >= 1 && block < own - 1) {
                float score = 0.0f;
#pragma unroll
                for (int j = -C; j < M; j++) {
                    const int times = j < 0 ? C + 1 + j : min(C + 1, M - j);
                    score += (float)times * at<float>(WEIGHTS + (C + i * M + j) * 4);
                }
                key = (u64)bits_of(score) << 32 | (0xffffffffu - (u32)block);
            }
            sort_warp(key);
            if (first == 32 * warp) best = key;
            else merge_warp(best, key);
        }
        if (lane < NTOP) at<u64>(KEYS + 8 * (warp * NTOP + lane)) = best;
        sync_block();
#pragma unroll
        for (int first = 0; first < WARPS * NTOP; first += THREADS / 2) {
            const int i = first + thread / 2;
            const u64 key = i < WARPS * NTOP ? at<u64>(KEYS + 8 * i) : 0;
            const int place = larger<WARPS * NTOP>(KEYS, key);
            if (key && place < NTOP) {
#pragma unroll
                for (int to = 0; to < P; to += 2)
                    if (to + thread % 2 < P) store_remote(BEST + 8 * (rank * NTOP + place), to + thread % 2, key);
            }
        }
    }
    cluster_arrive();

    const auto add_compressed = [&] {
        if (ROOM) {
            wait_group<1>();  // all but the selected tiles
            sync_warp();
        }
#pragma unroll 2
        for (int i = values_at; i < end_at; i++) {
            if (!ROOM) {
                wait_group<STAGES - 1>();
                sync_warp();
            }
            float w[TILES_OF_HEADS][4];
#pragma unroll
            for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int token = ROWS * (i - values_at) + lane / 4 + 8 * r;
                    const float2 s = at<float2>(scores + (token * HEADS + 8 * n + lane % 4 * 2) * 4);
                    w[n][2 * r] = exp2_of(s.x - cmp.m[n][0]);
                    w[n][2 * r + 1] = exp2_of(s.y - cmp.m[n][1]);
                }
            }
            add_values(cmp, w, ring + i % STAGES * STAGE);
            if (!ROOM) {
                sync_warp();
                load(i + STAGES);
            }
        }
    };
    if (!ROOM) add_compressed();
    cluster_wait();

    // The best of all blocks, best first.
#pragma unroll
    for (int first = 0; first < CANDIDATES; first += THREADS / 2) {
        const int i = first + thread / 2;
        const u64 key = i < CANDIDATES ? at<u64>(BEST + 8 * i) : 0;
        const int place = larger<CANDIDATES>(BEST, key);
        if (key && place < NTOP) at<int>(CHOSEN + 4 * place) = (int)(0xffffffffu - (u32)key);
    }
    sync_block();
    if (rank == 0 && thread < NTOP) a.top[(long long)group * NTOP + thread] = at<int>(CHOSEN + 4 * thread);

    // A selected tile's first position, or -1: block 0, the newest two, and the chosen ones.
    const auto position_of = [&](int tile) {
        const int i = tile / TILES_OF_BLOCK, row = tile % TILES_OF_BLOCK * ROWS;
        if (i >= NSEL) return -1;
        const int block = i == 0 ? 0 : i == 1 ? (own >= 1 ? own : -1) : i == 2 ? (own >= 2 ? own - 1 : -1)
                                                              : at<int>(CHOSEN + 4 * (i - 3));
        return block < 0 || block * LS + row > t ? -1 : block * LS + row;
    };
    const auto load_selected = [&](int done) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int tile = everyone + ALL_WARPS * (done + i), first = position_of(tile);
            if (first >= 0) {
                const int end = min(t + 1, first - tile % TILES_OF_BLOCK * ROWS + LS);
                load_rows<DK>(ring + (end_at + 2 * i) % STAGES * STAGE, k_sel, first, end);
                load_rows<DV>(ring + (end_at + 2 * i + 1) % STAGES * STAGE, v_sel, first, end);
            }
        }
        close_group();
    };
    load_selected(0);

    // The position is stored, six rows, each by one warp.
    const int kind = everyone / 2, place = lane * 8;
    const bool stores = fits && everyone < 6 && place < (everyone % 2 ? DV : DK);
    const Fresh &given = a.fresh[kind % 3];
    const Cache &cache = kind == 0 ? a.raw : kind == 1 ? a.sel : a.win;
    const int length = kind == 0 ? L : kind == 1 ? a.n_sel : a.n_win;
    const long long row = ((long long)b * length + t % length) * G + g;
    Sixteen stored;
    if (stores)
        stored = *reinterpret_cast<const Sixteen *>(everyone % 2 ? given.v + b * given.v_stride + g * DV + place
                                                                 : given.k + b * given.k_stride + g * DK + place);
    float gate[3][TILES_OF_HEADS][2];
#pragma unroll
    for (int i = 0; i < 3 * TILES_OF_HEADS * 2; i++) {
        const int h = i / 2 % TILES_OF_HEADS * 8 + lane % 4 * 2 + i % 2;
        gate[i / 2 / TILES_OF_HEADS][i / 2 % TILES_OF_HEADS][i % 2] =
            h < HPG ? gate_of(a.gates, ((long long)b * G * HPG + g * HPG + h) * 3 + i / 2 / TILES_OF_HEADS) : 0.0f;
    }

    // While they come: the other two branches, whose sums are known.
    if (ROOM) add_compressed();
    {
        float joint_win[TILES_OF_HEADS][2];
        joint_lse(joint_win, LSE_WIN);
#pragma unroll
        for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                lse[n][j] = gate[0][n][j] * exp2_of(cmp.m[n][j] - lse[n][j]);
                joint_win[n][j] = gate[2][n][j] * exp2_of(win.m[n][j] - joint_win[n][j]);
            }
        }
        sync_warp();
        store_part(scores, cmp, lse, &win, joint_win);
    }

    if (stores) *reinterpret_cast<Sixteen *>(everyone % 2 ? cache.v + row * DV + place : cache.k + row * DK + place) = stored;

    Part sel;
    sel.clear();
    for (int done = 0; done < SELECTED_TILES; done += AT_ONCE) {
        wait_group<0>();
        sync_warp();
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int tile = everyone + ALL_WARPS * (done + i), first = position_of(tile);
            if (first >= 0) {
                const int end = min(t + 1, first - tile % TILES_OF_BLOCK * ROWS + LS);
                attend(sel, q, ring + (end_at + 2 * i) % STAGES * STAGE, ring + (end_at + 2 * i + 1) % STAGES * STAGE,
                       end - first, a.scale);
            }
        }
        sync_warp();
        if (done + AT_ONCE < SELECTED_TILES) load_selected(done + AT_ONCE);
    }
    float one[TILES_OF_HEADS][2];
#pragma unroll
    for (int n = 0; n < TILES_OF_HEADS; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            one[n][j] = 1.0f;
            const float l = sum_over_rows(sel.l[n][j]);
            const float2 x = {sel.m[n][j], l};
            if (lane < 4) at<float2>(SUMS + (warp * HEADS + 8 * n + lane * 2 + j) * 8) = x;
        }
    }
    store_part(ring, sel, one, nullptr, one);
    sync_block();

    // The block's parts as one, to the block that finishes these columns of the output.
    const int h = thread % HEADS;
    const float gate_sel = h < HPG ? gate_of(a.gates, ((long long)b * G * HPG + g * HPG + h) * 3 + 1) : 0.0f;
    float m = NONE, l = 0.0f, factor[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) m = fmaxf(m, at<float2>(SUMS + (w * HEADS + h) * 8).x);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float2 x = at<float2>(SUMS + (w * HEADS + h) * 8);
        factor[w] = exp2_of(x.x - m);
        l += x.y * factor[w];
    }
    for (int i = thread; i < DV * HEADS; i += THREADS) {
        const int v = i / HEADS;
        float base = 0.0f, chosen = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            base += at<float>(SCORES + w * WARP_SCORES + 4 * i);
            chosen += at<float>(RING + w * WARP_RING + 4 * i) * factor[w];
        }
        const int there = (rank * COLUMNS + v % COLUMNS) * HEADS + h;
        store_remote(BASE_IN + 4 * there, v / COLUMNS, base);
        store_remote(CHOSEN_IN + 4 * there, v / COLUMNS, chosen);
    }
    if (thread < P * HEADS) store_remote(SUMS_IN + (rank * HEADS + h) * 8, thread / HEADS, m, l);
    cluster_arrive();
    cluster_wait();

    for (int i = thread; i < COLUMNS * HEADS; i += THREADS) {
        if (h >= HPG || rank * COLUMNS + i / HEADS >= DV) continue;
        float most = NONE, sum = 0.0f, base = 0.0f, chosen = 0.0f;
#pragma unroll
        for (int p = 0; p < P; p++) most = fmaxf(most, at<float2>(SUMS_IN + (p * HEADS + h) * 8).x);
#pragma unroll
        for (int p = 0; p < P; p++) {
            const float2 x = at<float2>(SUMS_IN + (p * HEADS + h) * 8);
            const float weight = exp2_of(x.x - most);
            sum += x.y * weight;
            chosen += at<float>(CHOSEN_IN + (p * COLUMNS * HEADS + i) * 4) * weight;
            base += at<float>(BASE_IN + (p * COLUMNS * HEADS + i) * 4);
        }
        a.o[((long long)b * G * HPG + g * HPG + h) * DV + rank * COLUMNS + i / HEADS] =
            (u16)pack(base + gate_sel * chosen / sum, 0.0f);
    }
}
