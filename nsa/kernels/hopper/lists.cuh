// What the kernels that gather share; they name it after their `Arguments`.
//
// Constants: TT (pairs of a work tile), TOKENS (that are taken at a time).

// A work tile, and the next one of this block of threads.
struct Work {
    int bg, tile, b, g, block, first, end, steps;
    const int *pairs;

    DEVICE Work(const Arguments &a) : bg(a.bg), tile(blockIdx.x) {}
    DEVICE bool find(const Arguments &a) {
        for (; bg < a.bg_end; bg++) {
            const int there = a.tile_offsets[bg * (a.lists + 1) + a.lists];
            if (tile < there) break;
            tile -= there;
        }
        if (bg == a.bg_end) return false;
        b = bg / a.G;
        g = bg % a.G;
        const int list = a.tile_block[bg * a.max_tiles + tile], at = bg * (a.lists + 1) + list;
        block = list % a.blocks;
        first = a.offsets[at] + (tile - a.tile_offsets[at]) * TT;
        end = min(first + TT, a.offsets[at + 1]);
        steps = (end - first + TOKENS - 1) / TOKENS;
        pairs = a.pairs + (long long)bg * a.n_pairs;
        return true;
    }
    DEVICE void next() { tile += gridDim.x; }
};
