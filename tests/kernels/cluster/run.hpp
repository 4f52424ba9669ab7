// Runs the kernel's clusters one after another; included behind it.

struct Span { const void *from; long long bytes; };

namespace host {

inline const Arguments *arguments;
inline void enter() {
    decode_step(*arguments);
    world.now->done = world.moved = true;
    yield();
}
// Another order at each call.
inline void shuffle(std::vector<int> &order, u64 &state) {
    for (size_t left = order.size(); left > 1; left--) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        std::swap(order[left - 1], order[state % left]);
    }
}

}  // namespace host

extern "C" int shared_bytes() { return SHARED_BYTES; }

extern "C" void run(int clusters, const Arguments *arguments, const Span *readable, int n_readable, u64 seed, int late) {
    using namespace host;
    u64 random = (seed + 1) * 0x9e3779b97f4a7c15;
    host::arguments = arguments;
    world.late = late;
    world.readable.clear();
    for (int i = 0; i < n_readable; i++) {
        const char *from = static_cast<const char *>(readable[i].from);
        world.readable.push_back({from, from + readable[i].bytes});
    }
    for (int cluster = 0; cluster < clusters; cluster++) {
        world.cluster = cluster;
        world.barrier = {P * BLOCK, 0, 0};
        world.blocks = std::vector<Block>(P);
        for (auto &block : world.blocks) {
            block.memory.assign(SHARED_BYTES, 0xff);
            block.barrier.size = BLOCK;
            for (auto &warp : block.warps) warp.barrier.size = 32;
        }
        constexpr int STACK = 1 << 16;
        char *stacks = static_cast<char *>(std::malloc(size_t(P) * BLOCK * STACK));
        std::vector<Fiber> fibers(P * BLOCK);
        std::vector<int> order(fibers.size());
        for (int i = 0; i < (int)fibers.size(); i++) {
            Fiber &fiber = fibers[i];
            fiber.thread = i % BLOCK;
            fiber.rank = i / BLOCK;
            order[i] = i;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = stacks + size_t(i) * STACK;
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, enter, 0);
        }
        for (int left = (int)fibers.size(); left;) {
            shuffle(order, random);
            world.moved = false;
            left = 0;
            for (int i : order) {
                if (!rests(fibers[i])) resume(fibers[i]);
                left += !fibers[i].done;
            }
            if (left && !world.moved) fail("every thread waits");
        }
        std::free(stacks);
    }
}
