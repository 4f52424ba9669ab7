// What the kernels that gather share; they name it after their `Arguments`.
//
// A launch takes lists `list_from .. list_end` of each pair of batch and group.
//
// Constants: TT (pairs of a work tile), TOKENS (that are taken at a time), HPG, NTOP.

// A work tile, and the next one of this block of threads.
struct Work {
    int bg, tile, b, g, block, first, end, steps;
    const int *pairs;

    DEVICE Work(const Arguments &a) : bg(a.bg), tile(blockIdx.x) {}
    DEVICE bool find(const Arguments &a) {
        int from = 0;
        for (; bg < a.bg_end; bg++) {
            const int *of_list = a.tile_offsets + bg * (a.lists + 1);
            from = of_list[a.list_from];
            const int there = of_list[a.list_end] - from;
            if (tile < there) break;
            tile -= there;
        }
        if (bg == a.bg_end) return false;
        b = bg / a.G;
        g = bg % a.G;
        const int list = a.tile_block[bg * a.max_tiles + from + tile], at = bg * (a.lists + 1) + list;
        block = list % a.blocks;
        first = a.offsets[at] + (from + tile - a.tile_offsets[at]) * TT;
        end = min(first + TT, a.offsets[at + 1]);
        steps = (end - first + TOKENS - 1) / TOKENS;
        pairs = a.pairs + (long long)bg * a.n_pairs;
        return true;
    }
    DEVICE void next() { tile += gridDim.x; }
};

// Boxes of a step's tokens, CHUNKS of 64 columns for each, a lane each. They are found a step before they are asked for.
template <int CHUNKS> struct Boxes {
    static constexpr int ROUNDS = (TOKENS * CHUNKS + 31) / 32;
    int pair[ROUNDS];

    // Beyond the end the last token comes again. Nothing here waits for memory.
    DEVICE void find(const Work &x, int e, int lane) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) pair[r] = x.pairs[min(e + (lane + 32 * r) / CHUNKS, x.end - 1)];
    }
    template <class Copy> DEVICE void bring(const Work &x, int lane, Copy copy) const {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const int slot = (lane + 32 * r) / CHUNKS;
            if (slot < TOKENS) copy(slot, (lane + 32 * r) % CHUNKS, pair[r] / NTOP);
        }
    }
};

// A work tile and the one after it, which is found while the first one is at work.
struct TwoWorks {
    Work now, then;
    bool more, more_then;

    DEVICE TwoWorks(const Arguments &a) : now(a), then(a) {
        more = now.find(a);
        look(a);
    }
    DEVICE void next(const Arguments &a) {
        now = then;
        more = more_then;
        look(a);
    }
    DEVICE void look(const Arguments &a) {
        then = now;
        then.next();
        more_then = more && then.find(a);
    }
};

// Boxes of the next AHEAD steps, found as many steps before they are asked for, across the end of a work tile.
template <int CHUNKS, int AHEAD = 4> struct Coming {
    Boxes<CHUNKS> boxes[AHEAD];

    DEVICE void begin(const TwoWorks &x, int lane) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) boxes[i].find(x.now, x.now.first + i * TOKENS, lane);
    }
    // A work tile of fewer steps: what comes behind them was not known when they were found.
    DEVICE void fill(const TwoWorks &x, int lane) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (i >= x.now.steps && x.more_then) boxes[i].find(x.then, x.then.first + (i - x.now.steps) * TOKENS, lane);
    }
    DEVICE Boxes<CHUNKS> take(const TwoWorks &x, int i, int lane) {
        const Boxes<CHUNKS> found = boxes[0];
#pragma unroll
        for (int j = 1; j < AHEAD; j++) boxes[j - 1] = boxes[j];
        const int at = i + AHEAD - x.now.steps;
        if (at < 0)
            boxes[AHEAD - 1].find(x.now, x.now.first + (i + AHEAD) * TOKENS, lane);
        else if (x.more_then)
            boxes[AHEAD - 1].find(x.then, x.then.first + at * TOKENS, lane);
        return found;
    }
};
