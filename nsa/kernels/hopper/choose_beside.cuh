// How dense_forward.cu chooses blocks as well (CHOOSE), from its own probabilities: no product is made twice.
//
// Keys come in an order in which a lane's four columns of 16 are the keys of a block. From each tile a lane leaves its blocks' sums
// over keys, relative to the row's largest score so far, as float16, in a strip of global memory that stays in the L2 cache.
// The remaining warps weigh the strip of the work tile before by its log-sum-exp, sum over heads and choose. As sums are rounded,
// blocks that might change places with the worst of the best get their exact scores from queries and keys.
constexpr int CHOOSERS = 7, HEADS = (HPG + 7) / 8, TILE_BYTES = BM * 72;
// Probabilities are 2^LIFT times as large as they are, so that sums of them are no less than float16 holds in full.
constexpr int LIFT = 12;
// Sums, rounded twice, are within 2^-10 of what they were, and so are scores, or within 3 * 2^-25 for each head if they are small.
constexpr float NEAR = 1.f - 2.1f / 1024, LEAST = HPG * 2e-10f;
static_assert(BN == 128 && LS == 4 * D && L == 2 * D && NTOP <= 32 && HPG <= 32, "sizes that are served");

DEVICE u32 pack_half(float low, float high) {
    u32 x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}
DEVICE float2 halves(u32 x) {
    float2 y;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}" : "=f"(y.x), "=f"(y.y) : "r"(x));
    return y;
}

// Leaves what a lane's two rows, `row` and `row + 8`, give to the blocks of a tile: `s` probabilities relative to `m`, which are added
// to `total`. The last key of a tile gives half to the next tile's first block, whoever has that.
DEVICE void leave(const float (&s)[BN / 2], const float (&m)[2], float (&total)[2], unsigned char *tile, int row, int lane) {
    const int t = lane % 4, from = lane & ~3 | (t + 3) % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 sums[4], last[4];
        float all = 0.f;
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int at = 16 * q + 2 * h;
            const float x = s[at] + s[at + 1] + s[at + 4], y = s[at + 8] + s[at + 9] + s[at + 12];
            all += x + s[at + 5];
            all += y + s[at + 13];
            sums[q] = pack_half(fmaf(2.f, x, s[at + 5]), fmaf(2.f, y, s[at + 13]));
            last[q] = pack_half(s[at + 5], s[at + 13]);
        }
        total[h] += all;
#pragma unroll
        for (int q = 0; q < 4; q++) {
            // The last key of the block before: that of the lane before, or of the last lane's block before.
            const u32 shifted = __byte_perm(q ? last[q - 1] : 0, last[q], 0x5432);
            const u32 before = __shfl_sync(~0u, t == 3 ? shifted : last[q], from);
            asm("add.rn.f16x2 %0, %0, %1;" : "+r"(sums[q]) : "r"(before));
        }
        __stcg((uint4 *)(tile + (row + 8 * h) * 64 + t * 16), make_uint4(sums[0], sums[1], sums[2], sums[3]));
        if (t == 3) __stcg((float2 *)(tile + BM * 64 + (row + 8 * h) * 8), make_float2(m[h], s[60 + 2 * h + 1]));
    }
}

// What a lane has of a tile: of each of its heads eight blocks' sums, the largest score and the last key's probability.
struct Left {
    uint4 sums[HEADS];
    float2 row[HEADS];

    DEVICE void load(const unsigned char *tile, int slot, int lane) {
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const int row = slot * HPG + min(lane / 4 + 8 * k, HPG - 1);
            sums[k] = __ldcg((const uint4 *)(tile + row * 64 + lane % 4 * 16));
            this->row[k] = __ldcg((const float2 *)(tile + BM * 64 + row * 8));
        }
    }
};

// Scores of a token's blocks go to `row`; returns the lane's best. `lse` of heads lane / 4 + 8 * k.
DEVICE int gather_row(const unsigned char *strip, int slot, int limit, const float (&lse)[HEADS], u32 row, int lane) {
    const int g = lane / 4;
    int best = -1;
    float over = 0.f;
    Left now, then;
    if (limit > 0) then.load(strip, slot, lane);
    for (int tile = 0; 32 * tile < limit; tile++) {
        now = then;
        if (32 * (tile + 1) < limit) then.load(strip + (tile + 1) * TILE_BYTES, slot, lane);
        float sum[8] = {over, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
        over = 0.f;
#pragma unroll
        for (int k = 0; k < HEADS; k++) {
            const float weight = exp2_of(now.row[k].x - lse[k] - LIFT);
            const u32 x[4] = {now.sums[k].x, now.sums[k].y, now.sums[k].z, now.sums[k].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float2 y = halves(x[j]);
                sum[2 * j] = fmaf(weight, y.x, sum[2 * j]);
                sum[2 * j + 1] = fmaf(weight, y.y, sum[2 * j + 1]);
            }
            if (lane % 4 == 0) over = fmaf(weight, now.row[k].y, over);
        }
        // Over heads, so that a lane is left with block 4 * g + t of the tile's.
#pragma unroll
        for (int half = 4; half > 0; half /= 2)
#pragma unroll
            for (int j = 0; j < half; j++) {
                const float mine = g & half ? sum[j + half] : sum[j], other = g & half ? sum[j] : sum[j + half];
                sum[j] = mine + __shfl_xor_sync(~0u, other, 4 * half);
            }
        const int block = 32 * tile + lane, score = block >= 1 && block < limit ? __float_as_int(sum[0]) : -1;
        store_one(row + block * 4, __int_as_float(score));
        best = max(best, score);
    }
    return best;
}

DEVICE void multiply_small(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if HALF
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The score of a block for token `t` from queries and keys: the block's four keys, and the one before them. The order in which
// columns are summed is the same for both operands, and any.
DEVICE float exact(const Arguments &a, const Work &x, int t, int block, const float (&lse)[HEADS], int lane) {
    const int g = lane / 4, u = lane % 4, key = 4 * block - 4 + g;
    const int at = key & ~15 | (key >> 1 & 1) << 3 | (key >> 2 & 3) << 1 | key & 1;
    const u16 *q = a.q_at + x.b * a.q_strides[0] + t * a.q_strides[1] + 8 * u;
    const uint4 *k = (const uint4 *)(a.k_at + (((long long)x.b * a.n_keys + at) * a.G + x.g) * DK + 8 * u);
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < HEADS; i += 2) {
        const uint4 *rows[2];
#pragma unroll
        for (int h = 0; h < 2; h++) rows[h] = (const uint4 *)(q + (x.g * HPG + min(g + 8 * (i + h), HPG - 1)) * a.q_strides[2]);
        float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 2
        for (int n = 0; n < DK / 32; n++) {
            const uint4 q0 = rows[0][4 * n], q1 = rows[1][4 * n], y = k[4 * n];
            multiply_small(c, q0.x, q1.x, q0.y, q1.y, y.x, y.y);
            multiply_small(c, q0.z, q1.z, q0.w, q1.w, y.z, y.w);
        }
        // Of eight keys the last five count: by one for a half, by two for both.
        const float weight[2] = {u > 1 ? 2.f : 0.f, u == 2 ? 2.f : u > 0 ? 1.f : 0.f};
#pragma unroll
        for (int h = 0; h < 2 && i + h < HEADS; h++)
#pragma unroll
            for (int j = 0; j < 2; j++) sum = fmaf(weight[j], exp2_of(fmaf(c[2 * h + j], a.scale2, -lse[i + h])), sum);
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    return sum;
}

// What a score may be at most below another one, and be no less than that.
DEVICE int nearly(int score) { return max(__float_as_int(__int_as_float(score) * NEAR - LEAST), 0); }

// The best blocks of a token, best first, the lower one of equals: lane i has that of rank i, or -1.
DEVICE int best_blocks(const Arguments &a, const Work &x, const unsigned char *strip, int slot, u32 row, int lane) {
    const int t = x.t0 + slot, limit = limit_of(t);
    float lse[HEADS];
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        const int head = lane / 4 + 8 * k;
        lse[k] = head < HPG ? __ldcg(a.lse + ((long long)x.b * a.S + t) * a.H + x.g * HPG + head) : __int_as_float(0x7f800000);
    }
    const u32 entries = row + (ROW - ENTRIES) * 4;
    int n = choose<32>(row, gather_row(strip, slot, limit, lse, row, lane), limit, lane, nearly);
    if (n <= NTOP) return chosen(row, n, lane);
    u64 mine = lane < n ? load_long(entries + lane * 8) : 0;
    const float worst = __uint_as_float(__shfl_sync(~0u, (u32)(mine >> 32), NTOP - 1));
    const int low = nearly(__float_as_int(worst)), high = __float_as_int((worst + LEAST) * (2.f - NEAR));
    const int near = __popc(__ballot_sync(~0u, (int)(mine >> 32) >= low));
    // Which of blocks is chosen that get next to nothing has no effect.
    if (near == NTOP || worst < 2 * LEAST) return chosen(row, NTOP, lane);
    if (near < 32) {
        for (u32 some = __ballot_sync(~0u, (int)(mine >> 32) >= low && (int)(mine >> 32) <= high); some; some &= some - 1) {
            const int other = __ffs(some) - 1;
            const float found = exact(a, x, t, ~__shfl_sync(~0u, (u32)mine, other), lse, lane);
            if (lane == other) mine = (u64)__float_as_uint(found) << 32 | (u32)mine;
        }
        store_long(entries + lane * 8, mine);
        return chosen(row, keep_best<NTOP>(entries, near, lane), lane);
    }
    // As many as are not kept, as where keys are equal: all that may change places get their exact scores, and all are looked at again.
    int best = -1;
    for (int block = lane; block - lane < limit; block += 32) {
        int score = __float_as_int(load_one(row + block * 4));
        for (u32 some = __ballot_sync(~0u, score >= low && score <= high); some; some &= some - 1) {
            const int other = __ffs(some) - 1;
            const float found = exact(a, x, t, block - lane + other, lse, lane);
            if (lane == other) score = __float_as_int(found);
        }
        store_one(row + block * 4, __int_as_float(score));
        best = max(best, score);
    }
    __syncwarp();
    return chosen(row, choose<NTOP>(row, best, limit, lane, [](int score) { return score; }), lane);
}

DEVICE void choose_all(const Arguments &a, u32 base, int chooser, int lane) {
    const u32 row = base + AT_ROWS + chooser * ROW * 4;
    Work x;
    for (; x.find(a); x.next()) {
        const u32 bar = bar_strip(base, x.round);
        barrier_wait(bar, x.round / 2 & 1);
        const unsigned char *strip = a.strips + (long long)(blockIdx.x * 2 + (x.round & 1)) * a.strip_bytes;
        // The choosers go on where the last tile ended, so that each has as much to do.
        for (int i = (chooser + x.round * (CHOOSERS - 1) * TOKENS) % CHOOSERS; i < TOKENS; i += CHOOSERS) {
            const int t = x.t0 + i;
            if (t >= a.S) break;
            const int block = best_blocks(a, x, strip, i, row, lane);
            const long long pair = (long long)x.b * a.G + x.g;
            if (lane < NTOP) a.top[(pair * a.S + t) * NTOP + lane] = block;
            if (block >= 0) atomicAdd(a.counts + pair * a.lists + t / a.span * a.blocks + block, 1);
            __syncwarp();
        }
        if (ARRIVES) barrier_arrive(bar + 8);
    }
}
