// Runs the kernel's clusters one after another; included behind it.

struct Span { const void *from; long long bytes; };

namespace host {

inline const Arguments *arguments;
inline void enter() {
    decode_step(*arguments);
    world.now->done = world.moved = true;
    yield();
}

}  // namespace host

extern "C" int shared_bytes() { return SHARED_BYTES; }

extern "C" void run(int clusters, const Arguments *arguments, const Span *readable, int n_readable, u64 seed, int late) {
    using namespace host;
    std::mt19937_64 random(seed);
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
        std::vector<Fiber> fibers(P * BLOCK);
        std::vector<int> order(fibers.size());
        for (int i = 0; i < (int)fibers.size(); i++) {
            Fiber &fiber = fibers[i];
            constexpr int STACK = 1 << 16;
            fiber.stack = std::make_unique<char[]>(STACK);
            fiber.thread = i % BLOCK;
            fiber.rank = i / BLOCK;
            order[i] = i;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, enter, 0);
        }
        for (int left = (int)fibers.size(); left;) {
            std::shuffle(order.begin(), order.end(), random);
            world.moved = false;
            left = 0;
            for (int i : order) {
                if (fibers[i].done) continue;
                world.now = &fibers[i];
                swapcontext(&world.scheduler, &fibers[i].context);
                left += !fibers[i].done;
            }
            if (left && !world.moved) fail("every thread waits");
        }
    }
}
