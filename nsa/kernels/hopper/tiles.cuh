// What the kernels do with a warpgroup's tile in registers: 64 keys down, N_ROWS rows of queries across.
//
// Lane 4 * g + t of a warp holds of its 16 keys g and g + 8, and of every eight rows 2 * t and 2 * t + 1.

// Numbers of a lane's rows in shared memory, two of every eight. Where registers suffice they are loaded before products that
// keep shared memory busy, for a load behind these waits as long as they take.
template <int N_ROWS, bool HELD = N_ROWS <= 64> struct Rows {
    float2 held[HELD ? N_ROWS / 8 : 1];
    u32 from;

    DEVICE void load(u32 at) {
        from = at;
#pragma unroll
        for (int j = 0; HELD && j < N_ROWS / 8; j++) held[j] = load_two(at + j * 32);
    }
    DEVICE float2 operator[](int j) const { return HELD ? held[j] : load_two(from + j * 32); }
};

// Gated probabilities from scores `s [64 keys, N_ROWS rows]` of a warpgroup, whose rows lose `shift`; 0 for a column before
// `since`.
template <int N_ROWS, bool MASKED, bool HELD>
DEVICE void probabilities(float (&s)[N_ROWS / 2], const Rows<N_ROWS, HELD> &shift, float scale2, const int (&since)[2]) {
#pragma unroll
    for (int j = 0; j < N_ROWS / 8; j++) {
        const float2 m = shift[j];
        // The last bit of the shift is the gate's sign.
        const u32 sign[2] = {__float_as_uint(m.x) << 31, __float_as_uint(m.y) << 31};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float p = exp2_of(fmaf(s[4 * j + i], scale2, -(i & 1 ? m.y : m.x)));
            p = __uint_as_float(__float_as_uint(p) ^ sign[i & 1]);
            s[4 * j + i] = !MASKED || since[i >> 1] <= 8 * j + (i & 1) ? p : 0.f;
        }
    }
}

template <int N_ROWS> DEVICE void as_operand(u32 (&a)[N_ROWS / 16][4], const float (&x)[N_ROWS / 2]) {
#pragma unroll
    for (int i = 0; i < N_ROWS / 16; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) a[i][r] = pack(x[8 * i + 2 * r], x[8 * i + 2 * r + 1]);
}

// Gradients of scores `ds = p (dp - delta)`, as an operand and, turned over, in shared memory: rows down, 64 keys across.
// `to`: where the lane's row of the first four 8 x 8 matrices goes.
template <int N_ROWS, bool HELD>
DEVICE void score_gradients(u32 (&ds)[N_ROWS / 16][4], const float (&p)[N_ROWS / 2], const float (&dp)[N_ROWS / 2],
                            const Rows<N_ROWS, HELD> &delta, u32 to) {
#pragma unroll
    for (int j = 0; j < N_ROWS / 8; j++) {
        const float2 e = delta[j];
        ds[j / 2][j % 2 * 2] = pack(p[4 * j] * (dp[4 * j] - e.x), p[4 * j + 1] * (dp[4 * j + 1] - e.y));
        ds[j / 2][j % 2 * 2 + 1] = pack(p[4 * j + 2] * (dp[4 * j + 2] - e.x), p[4 * j + 3] * (dp[4 * j + 3] - e.y));
        if (j % 2) store_matrices_transposed(to + j / 2 * 2048, ds[j / 2]);
    }
}
// Offset of a lane for score_gradients: 16 keys of a warp are 32 bytes of a row of 128, swizzled.
DEVICE u32 turned_over(int warp, int lane) {
    const int row = lane % 8, unit = 2 * warp + lane / 8 % 2;
    return row * 128 + lane / 16 * 1024 + ((unit ^ row) << 4);
}

// `x [64 columns, N_ROWS rows]` of a warpgroup as elements turned over, where score_gradients puts its result.
template <int N_ROWS> DEVICE void store_turned(u32 to, const float (&x)[N_ROWS / 2]) {
    u32 a[N_ROWS / 16][4];
    as_operand<N_ROWS>(a, x);
#pragma unroll
    for (int i = 0; i < N_ROWS / 16; i++) store_matrices_transposed(to + i * 2048, a[i]);
}

// `x [64 columns, N_ROWS rows]` of a warpgroup turned over into two boxes of 32 columns, their 16 bytes swizzled by row.
template <int N_ROWS> DEVICE void store_across(u32 to, int warp, int g, int t, const float (&x)[N_ROWS / 2]) {
    const u32 mine = to + warp / 2 * N_ROWS * 128 + g % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int unit = 4 * (warp % 2) + 2 * (i / 2) + g / 4, row = 2 * t + i % 2;
        const u32 there = mine + row * 128 + ((unit ^ row) << 4);
#pragma unroll
        for (int j = 0; j < N_ROWS / 8; j++) store_one(there + j * 1024, x[4 * j + i]);
    }
}

// `x [64 rows, 64 columns]` of a warpgroup into two boxes of 32 columns, `apart` bytes from each other, swizzled likewise.
DEVICE void store_down(u32 to, u32 apart, int warp, int g, int t, const float (&x)[32]) {
    const u32 mine = to + (16 * warp + g) * 128 + t % 2 * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        // Rows 8 further on have the same three last bits.
        const u32 there = mine + j / 4 * apart + ((2 * (j % 4) + t / 2) ^ g) * 16;
        store_two(there, x[4 * j], x[4 * j + 1]);
        store_two(there + 8 * 128, x[4 * j + 2], x[4 * j + 3]);
    }
}

// Adds a warpgroup's `x [64 keys, N]` times `scale` to rows of `to`, those of this lane's keys `key` and `key + 8` < n_keys.
template <int N> DEVICE void add_keys(float *to, const float (&x)[N / 2], int key, int n_keys, int t, float scale) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (key + 8 * h >= n_keys) continue;
        float *row = to + (long long)(key + 8 * h) * N + 2 * t;
#pragma unroll
        for (int j = 0; j < N / 8; j++) add_two(row + 8 * j, x[4 * j + 2 * h] * scale, x[4 * j + 2 * h + 1] * scale);
    }
}

// What follows is for tiles of the other kind: 64 rows of queries down, N keys across. A lane holds two rows, g and g + 8.

// Scores of keys `n0 ..` that a row does not see become minus infinity; `seen`: keys that it sees, less 2 * t, or, where keys come
// BY_LANE (a lane has a quarter of them, in their order), less N / 4 * t.
template <int N, bool BY_LANE = false> DEVICE void hide(float (&s)[N / 2], int n0, const int (&seen)[2]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        if (i / 4 * (BY_LANE ? 2 : 8) + i % 2 >= seen[i / 2 % 2] - n0) s[i] = __int_as_float(0xff800000);
}

// Scores to probabilities relative to `m`, in base 2: LIFT less than a row's largest score so far, unless that is at most SLACK more,
// so that what was summed before is seldom faded. `total` is the sum of what this lane holds (TOTAL: whether it is added to here); a
// tile in which a row sees nothing adds exactly zero. Returns whether `m` of some row grew, and then what former sums are to be
// multiplied by, `faded`.
template <int N, int LIFT = 0, int SLACK = 8, bool TOTAL = true>
DEVICE bool soften(float (&s)[N / 2], float (&m)[2], float (&total)[2], float (&faded)[2], float scale2) {
    float most[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        most[h] = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
        for (int j = 1; j < N / 8; j++) most[h] = fmaxf(most[h], fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        most[h] *= scale2;
    }
    const bool grows = __any_sync(~0u, most[0] > m[0] + (LIFT + SLACK) || most[1] > m[1] + (LIFT + SLACK));
    if (grows)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 1));
            most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 2));
            // Each row by itself: another one's scores, and what idle rows hold, must not change how this one is rounded.
            const float then = most[h] > m[h] + (LIFT + SLACK) ? most[h] - LIFT : m[h];
            faded[h] = exp2_of(m[h] - then);
            m[h] = then;
            total[h] *= faded[h];
        }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = 0.f;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int i = 2 * h; i < 2 * h + 2; i++) sum += s[4 * j + i] = exp2_of(fmaf(s[4 * j + i], scale2, -m[h]));
        if (TOTAL) total[h] += sum;
    }
    return grows;
}

template <int N> DEVICE void fade(float (&o)[N / 2], const float (&faded)[2]) {
#pragma unroll
    for (int j = 0; j < N / 2; j++) o[j] *= faded[j / 2 % 2];
}

DEVICE float sum_of_four(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// Turns four pairs of four lanes over: a lane has its pair of each of four times 8 columns before, four pairs of the same 8 after,
// and the other way round.
DEVICE void turn_four(u32 (&r)[4], int t) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j & bit) continue;
            const u32 other = __shfl_xor_sync(~0u, t & bit ? r[j] : r[j | bit], bit);
            r[j] = t & bit ? other : r[j];
            r[j | bit] = t & bit ? r[j | bit] : other;
        }
}

// Stores row `h` of a lane's two, times `scale`, as elements, 16 bytes at a time.
template <int N> DEVICE void store_row(u32 *to, const float (&x)[N / 2], int h, int t, float scale, bool inside) {
#pragma unroll
    for (int q = 0; q < N / 32; q++) {
        u32 r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = 4 * (4 * q + j) + 2 * h;
            r[j] = pack(x[at] * scale, x[at + 1] * scale);
        }
        turn_four(r, t);
        if (inside) *(uint4 *)(to + (4 * q + t) * 4) = make_uint4(r[0], r[1], r[2], r[3]);
    }
}

// Loads a row as store_row stores it, pairs of elements; 0 if it is not `inside`.
template <int N> DEVICE void load_row(u32 (&x)[N / 8], const u32 *from, int t, bool inside) {
#pragma unroll
    for (int q = 0; q < N / 32; q++) {
        uint4 found = make_uint4(0, 0, 0, 0);
        if (inside) found = *(const uint4 *)(from + (4 * q + t) * 4);
        u32 r[4] = {found.x, found.y, found.z, found.w};
        turn_four(r, t);
#pragma unroll
        for (int j = 0; j < 4; j++) x[4 * q + j] = r[j];
    }
}
