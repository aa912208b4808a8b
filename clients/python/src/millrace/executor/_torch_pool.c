// Where torch's caching allocator takes its segments from while a task runs: blocks of the worker's slab that the process has
// leased beforehand, and memory of the driver for what there is none for.
//
// Torch calls millrace_pool_alloc and millrace_pool_free under its own lock, where Python's must not be waited for: whoever has
// Python's may be waiting for torch's. So nothing here waits for anybody but the driver; _torch.py leases between the runs what
// was found to be missing in them. Built by tools/torch-pool; needs no library, not even C's.
//
// Blocks of the slab are only given to the default stream, which every run is waited for on: so what comes back can be used
// again, by this process or by others, without an event. No graph is ever captured there either, so that none can keep memory of
// the slab. Blocks of the driver belong to the stream that they were first given to.

typedef unsigned long u64;

enum { BLOCKS = 2048, MISSES = 256 };
enum { NONE, IDLE, USED, LEFT };

struct block {
  u64 at, size;
  u64 used_at;  // the hand-out that was its last, counted
  void *stream;
  unsigned char state, slab;
  unsigned char leaving;  // a result lies in it: nobody gets it again once torch has given it back
};

static volatile int taken;
static struct block blocks[BLOCKS];
static int top;  // entries from here on were never used
static u64 misses[MISSES];
static int missed;
static u64 handed_out, smallest;
static int (*mem_alloc)(u64 *at, u64 size);
static int (*mem_free)(u64 at);

// Says which source this was built from.
__attribute__((visibility("default"))) const char millrace_pool_source[] = SOURCE;

#define API __attribute__((visibility("default")))

static void lock(void) {
  while (__atomic_exchange_n(&taken, 1, __ATOMIC_ACQUIRE))
    while (__atomic_load_n(&taken, __ATOMIC_RELAXED)) {
    }
}

static void unlock(void) { __atomic_store_n(&taken, 0, __ATOMIC_RELEASE); }

static struct block *find(u64 at) {
  for (int i = 0; i < top; i++)
    if (blocks[i].state != NONE && blocks[i].at == at) return &blocks[i];
  return 0;
}

static struct block *entry(void) {
  for (int i = 0; i < top; i++)
    if (blocks[i].state == NONE) return &blocks[i];
  return top < BLOCKS ? &blocks[top++] : 0;
}

// The driver's cuMemAlloc_v2 and cuMemFree_v2, and the smallest block of the slab that is asked for, in bytes.
API void millrace_pool_init(void *allocate, void *give_back, u64 least) {
  mem_alloc = (int (*)(u64 *, u64))allocate;
  mem_free = (int (*)(u64))give_back;
  smallest = least;
}

// Takes a block of the slab. 0: there is no room in the table.
API int millrace_pool_add(u64 at, u64 size) {
  lock();
  struct block *b = entry();
  if (b) {
    b->at = at, b->size = size, b->stream = 0, b->used_at = handed_out;
    b->state = IDLE, b->slab = 1, b->leaving = 0;
  }
  unlock();
  return b != 0;
}

// A result lies in the block, which torch does not get again. 1: it does not have it any more, and the block is forgotten.
// 0: millrace_pool_left will name it.
API int millrace_pool_leave(u64 at) {
  lock();
  struct block *b = find(at);
  int gone = !b || b->state != USED;
  if (b && gone) b->state = NONE;
  else if (b) b->leaving = 1;
  unlock();
  return gone;
}

// Blocks that were to leave and that torch has given back since the last call.
API int millrace_pool_left(u64 *out, int most) {
  int n = 0;
  lock();
  for (int i = 0; i < top && n < most; i++)
    if (blocks[i].state == LEFT) {
      out[n++] = blocks[i].at;
      blocks[i].state = NONE;
    }
  unlock();
  return n;
}

// Forgets the idle block of the slab that was not used for the longest time, if that was before a hand-out, and returns it.
API u64 millrace_pool_oldest(u64 before) {
  u64 at = 0;
  struct block *oldest = 0;
  lock();
  for (int i = 0; i < top; i++) {
    struct block *b = &blocks[i];
    if (b->state == IDLE && b->slab && b->used_at < before && (!oldest || b->used_at < oldest->used_at)) oldest = b;
  }
  if (oldest) {
    at = oldest->at;
    oldest->state = NONE;
  }
  unlock();
  return at;
}

// Gives the driver back what lies idle since before a hand-out.
API void millrace_pool_trim(u64 before) {
  for (;;) {
    u64 at = 0;
    lock();
    for (int i = 0; i < top; i++)
      if (blocks[i].state == IDLE && !blocks[i].slab && blocks[i].used_at < before) {
        at = blocks[i].at;
        blocks[i].state = NONE;
        break;
      }
    unlock();
    if (!at) return;
    mem_free(at);
  }
}

// Sizes that there was no block of the slab for since the last call; odd by one: nor any other memory.
API int millrace_pool_missed(u64 *out, int most) {
  lock();
  int n = missed < most ? missed : most;
  for (int i = 0; i < n; i++) out[i] = misses[i];
  missed = 0;
  unlock();
  return n;
}

// Bytes: of the slab in use and idle, of the driver in use and idle; then the number of hand-outs, of sizes that the slab
// lacked and of blocks that left.
API void millrace_pool_state(u64 *out) {
  lock();
  for (int i = 0; i < 7; i++) out[i] = 0;
  for (int i = 0; i < top; i++) {
    const struct block *b = &blocks[i];
    if (b->state == IDLE || b->state == USED) out[2 * !b->slab + (b->state == IDLE)] += b->size;
    else if (b->state == LEFT) out[6]++;
  }
  out[4] = handed_out;
  out[5] = missed;
  unlock();
}

static void miss(u64 size) {
  if (missed < MISSES) misses[missed++] = size;
}

API void *millrace_pool_alloc(u64 size, int device, void *stream) {
  (void)device;
  if (!size) return 0;
  struct block *best = 0;
  lock();
  for (int i = 0; i < top; i++) {
    struct block *b = &blocks[i];
    if (b->state != IDLE || b->stream != stream || b->size < size || b->size > size + size / 8) continue;
    if (!best || b->slab > best->slab || (b->slab == best->slab && b->size < best->size)) best = b;
  }
  int lacks = !stream && size >= smallest && !(best && best->slab);
  u64 at = 0;
  if (best) {
    at = best->at;
    best->state = USED;
    best->used_at = ++handed_out;
    if (lacks) miss(size);
  }
  unlock();
  if (at) return (void *)at;
  int failed = mem_alloc(&at, size);
  if (failed) {
    millrace_pool_trim(~0ul);
    failed = mem_alloc(&at, size);
  }
  lock();
  if (lacks || failed) miss(size + !!failed);
  struct block *b = failed ? 0 : entry();
  if (b) {
    b->at = at, b->size = size, b->stream = stream, b->used_at = ++handed_out;
    b->state = USED, b->slab = 0, b->leaving = 0;
  }
  unlock();
  return failed ? 0 : (void *)at;
}

API void millrace_pool_free(void *p, u64 size, int device, void *stream) {
  (void)size, (void)device, (void)stream;
  if (!p) return;
  lock();
  struct block *b = find((u64)p);
  if (b) b->state = b->leaving ? LEFT : IDLE;
  unlock();
  if (!b) mem_free((u64)p);
}
