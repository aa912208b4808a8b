// The table of memory blocks from which torch's caching allocator takes its segments while a task
// runs. A slab block is part of the worker's slab, and the process leased it before the run. If no
// slab block fits, the driver allocates the memory: a driver block.
//
// Torch calls millrace_pool_alloc and millrace_pool_free with its own lock held. They must not wait
// for Python's lock, because its holder can be waiting for torch's. So this code waits only for the
// driver and for its own short lock. Between runs, _torch.py leases blocks of the sizes that were
// missing. tools/torch-pool compiles this file. It uses no library, not even that of C.
//
// Only the default stream gets slab blocks. The end of a run waits for that stream, so this process
// or others can use a returned block again without an event. Torch captures no graphs on the
// default stream, so no graph can keep memory of the slab. A driver block belongs to the stream
// that allocated it.

typedef unsigned long u64;

// The capacities of the tables.
enum { BLOCKS = 2048, MISSES = 256 };
// The states of a block: an unused entry of the table; free for torch; used by torch; withdrawn
// from torch, and returned by it.
enum { NONE, IDLE, USED, LEFT };

struct block {
  u64 at, size;
  u64 used_at;  // the value of handed_out when the block was last allocated or added
  void *stream;
  unsigned char state, slab;  // slab: 1 for a slab block, 0 for a driver block
  unsigned char leaving;  // 1: a result is in it; its state becomes LEFT when torch returns it
};

static volatile int taken;  // 1: a thread holds the lock, which guards all variables below
static struct block blocks[BLOCKS];
static int top;  // the entries from here on were never used
static u64 misses[MISSES];
static int missed;  // the number of entries in misses
static u64 handed_out, smallest;  // the number of allocations so far; see millrace_pool_init
static int (*mem_alloc)(u64 *at, u64 size);
static int (*mem_free)(u64 at);

// The hash of the source that this library was compiled from.
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

// Sets the driver's functions cuMemAlloc_v2 and cuMemFree_v2, and least, the size in bytes from
// which allocations without a slab block are recorded as missed.
API void millrace_pool_init(void *allocate, void *give_back, u64 least) {
  mem_alloc = (int (*)(u64 *, u64))allocate;
  mem_free = (int (*)(u64))give_back;
  smallest = least;
}

// Adds a slab block. Returns 0 if the table is full.
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

// Withdraws a block from torch, because a result is in it. Returns 1 if torch does not use the
// block: then the table forgets it at once. Returns 0 otherwise: millrace_pool_left will return it
// later.
API int millrace_pool_leave(u64 at) {
  lock();
  struct block *b = find(at);
  int gone = !b || b->state != USED;
  if (b && gone) b->state = NONE;
  else if (b) b->leaving = 1;
  unlock();
  return gone;
}

// Writes the addresses of withdrawn blocks that torch has returned to out, at most most of them,
// and forgets them. Returns their number.
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

// Forgets the idle slab block that was unused for the longest time, if its last use was before the
// allocation number before. Returns its address; 0: there is none.
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

// Frees the idle driver blocks that were last used before the allocation number before.
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

// Writes the sizes for which there was no slab block since the last call to out, at most most of
// them. A size with bit 0 set could not be allocated at all. Returns their number.
API int millrace_pool_missed(u64 *out, int most) {
  lock();
  int n = missed < most ? missed : most;
  for (int i = 0; i < n; i++) out[i] = misses[i];
  missed = 0;
  unlock();
  return n;
}

// Writes seven numbers to out: the bytes of slab blocks in use and idle, those of driver blocks in
// use and idle, the number of allocations so far, and the numbers of entries that
// millrace_pool_missed and millrace_pool_left would return.
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
