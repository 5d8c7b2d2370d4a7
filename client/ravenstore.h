/* clang-format off */
/* Ravenstore's C interface: the stable ABI of libravenstore.so.
 *
 * Conventions
 *   Every function that can fail returns a ravenstore_code_t; 0 is success. ravenstore_last_error()
 *   then has the words, per thread, valid until this thread's next failing call. Nothing here ends
 *   the process, throws, prints (unless $RAVENSTORE_DEBUG asks) or blocks without a bound. Sizes
 *   are bytes, times are nanoseconds. Devices are ordinals of this process (CUDA_VISIBLE_DEVICES
 *   applies); on the wire they go by UUID.
 * Options
 *   Their structs begin with struct_size = sizeof(the struct). Zero is the default of every field,
 *   also of those that are added later; NULL for the struct means all defaults.
 * Threads
 *   Every function may be called from any thread; two threads may not use one tensor's handle in
 *   put or free at the same time.
 * Streams
 *   They are cudaStream_t (or CUstream) as void*; with the host backend a ravenstore_host_stream_t,
 *   or NULL for "the calling thread". Before a stream is destroyed its work must be done, or each
 *   tensor that was put on it got and put on another: the driver may give its handle to a new
 *   stream, which is taken for the old one and waits for none of its work.
 * Fork
 *   A child of fork() must not use the parent's store: every call there returns
 *   RAVENSTORE_IS_FORKED. It may connect again.
 * Limits (RAVENSTORE_LIMIT)
 *   A store has at most 2^20 tensors at the same time. It knows 1024 streams and forgets none; a
 *   stream that is used on two devices counts twice. The call that names another fails. A tensor
 *   has 65,535 gets without a put, its create counted. A user has 2^18 names of tensors, the daemon
 *   2^20, and forgets none.
 */
/* clang-format on */
#ifndef RAVENSTORE_CLIENT_RAVENSTORE_H_
#define RAVENSTORE_CLIENT_RAVENSTORE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAVENSTORE_API __attribute__((visibility("default")))
#define RAVENSTORE_VERSION "0.1.0"

typedef enum ravenstore_code {
  RAVENSTORE_OK = 0,
  RAVENSTORE_INVALID_ARGUMENT = 1,
  RAVENSTORE_OUT_OF_MEMORY = 2,
  RAVENSTORE_TIMED_OUT = 3,
  RAVENSTORE_NOT_FOUND = 4,
  RAVENSTORE_WRONG_STATE = 5,
  RAVENSTORE_LOST = 6,
  RAVENSTORE_CAPTURING = 7,
  RAVENSTORE_IS_FORKED = 8,
  RAVENSTORE_UNAVAILABLE = 9,
  RAVENSTORE_VERSION_MISMATCH = 10,
  RAVENSTORE_PERMISSION = 11,
  RAVENSTORE_DEVICE = 12,
  RAVENSTORE_SYSTEM = 13,
  RAVENSTORE_LIMIT = 14,
  RAVENSTORE_CORRUPT = 15,
  RAVENSTORE_UNSUPPORTED = 16,
  /* No error: the get succeeded, and the bytes are to be recomputed (ravenstore_put_options). Only
   * tensors that were put with recompute_ns are ever answered so. */
  RAVENSTORE_RECOMPUTE = 100
} ravenstore_code_t;

typedef struct ravenstore_store ravenstore_store_t;   /* one attachment to the daemon */
typedef struct ravenstore_tensor ravenstore_tensor_t; /* one tensor of it */
typedef void* ravenstore_stream_t;

RAVENSTORE_API const char* ravenstore_last_error(void);
RAVENSTORE_API const char* ravenstore_code_name(ravenstore_code_t code);
RAVENSTORE_API const char* ravenstore_version(void);

/* ---- Attach ---- */

enum {
  /* Each tensor has one address for life. Without it those of less than a quarter of a page may
   * have another after each put. */
  RAVENSTORE_FIXED_ADDRESSES = 1
};

typedef struct ravenstore_connect_options {
  size_t struct_size;
  const char* socket;     /* NULL: $RAVENSTORE_SOCKET, else /run/ravenstore/ravenstore.sock */
  const char* name;       /* for people; NULL: the program's name, of a Python's its script's */
  uint64_t device_budget; /* bytes on each device; 0: the tenant's */
  uint64_t host_budget;   /* 0: the tenant's */
  uint64_t timeout_ns;    /* bound of the attach and, by default, of every wait, 2 s more if the
                          daemon is silent; 0: 30 s */
  uint32_t flags;
} ravenstore_connect_options_t;

/* Attaches this process. *store is the caller's; ravenstore_disconnect ends it. options may be
 * NULL. */
RAVENSTORE_API ravenstore_code_t ravenstore_connect(const ravenstore_connect_options_t* options,
                                                    ravenstore_store_t** store);
/* Waits for the streams' work on the store's tensors (bounded), frees all of them and detaches.
 * Handles of tensors that still exist turn into handles of lost ones and stay the caller's to free.
 * NULL is ignored. */
RAVENSTORE_API void ravenstore_disconnect(ravenstore_store_t* store);

/* ---- Tensors ---- */

enum {
  RAVENSTORE_FAIL_FAST = 1, /* do not wait for room */
  /* Do not wait for room once nothing of the client's can leave any more, all its streams' work is
   * done and no other client holds what it wants. */
  RAVENSTORE_FAIL_STUCK = 2,
  /* It will stay in use for long, as parameters do. A hint, which has no effect at present. */
  RAVENSTORE_LONG_LIVED = 4,
  /* Only work that comes later on `stream` uses it, or work that waits for that. So it may have the
   * memory of a tensor that was created like this and freed on this stream, which has not come
   * there. Ignored while the stream is captured, and of a stream of every thread's own. */
  RAVENSTORE_STREAM_ORDERED = 8
};

typedef struct ravenstore_create_options {
  size_t struct_size;
  int32_t device;
  uint32_t flags;
  /* NULL: none. At most 255 bytes of UTF-8, else RAVENSTORE_INVALID_ARGUMENT. Names stay known to
   * the daemon: give the tensors of every iteration the same. */
  const char* name;
  uint64_t timeout_ns;        /* 0: the store's */
  ravenstore_stream_t stream; /* with RAVENSTORE_STREAM_ORDERED; else NULL */
} ravenstore_create_options_t;

/* Creates a tensor in Userspace; its address is ravenstore_data(). Its bytes are undefined. The
 * handle is the caller's until ravenstore_free. Waits for room, bounded. */
RAVENSTORE_API ravenstore_code_t ravenstore_create(ravenstore_store_t* store, uint64_t bytes,
                                                   const ravenstore_create_options_t* options,
                                                   ravenstore_tensor_t** tensor);
/* `count` tensors in one go. All or none: on failure the created ones are freed again. */
RAVENSTORE_API ravenstore_code_t ravenstore_create_batch(ravenstore_store_t* store,
                                                         const uint64_t* bytes, size_t count,
                                                         const ravenstore_create_options_t* options,
                                                         ravenstore_tensor_t** tensors);
/* Creates a tensor and copies `bytes` from `from` (device or host memory) into it on `stream`.
 * `from` must stay valid until the stream passed the copy. */
RAVENSTORE_API ravenstore_code_t ravenstore_adopt(ravenstore_store_t* store, const void* from,
                                                  uint64_t bytes, ravenstore_stream_t stream,
                                                  const ravenstore_create_options_t* options,
                                                  ravenstore_tensor_t** tensor);

enum {
  RAVENSTORE_READ_WRITE = 0,
  RAVENSTORE_READ_ONLY = 1, /* the caller will not write: the copy elsewhere stays good */
  /* Return only when the bytes are there (else the stream waits, not the caller). */
  RAVENSTORE_BLOCKING = 2,
  RAVENSTORE_ON_DEVICE = 4 /* device counts; without it the tensor is got where it is or was last */
};

typedef struct ravenstore_get_options {
  size_t struct_size;
  uint32_t flags;
  int32_t device;      /* where to; else 0 */
  uint64_t timeout_ns; /* 0: the store's */
} ravenstore_get_options_t;

/* RAVENSTORE_RECOMPUTE: the tensor is in Userspace, *address is valid, and its bytes are undefined:
 * write them all on `stream`, also after a read-only get, and put it, without
 * RAVENSTORE_NOT_MODIFIED. Until then every get of it returns this.
 *
 * Brings the tensor to Userspace; *address is valid for work on `stream` until the matching put,
 * and may differ from the last one. Resident: no system call. Away: returns once the daemon
 * reserved room; the stream waits for the bytes. Several gets may overlap; each needs its put.
 * options may be NULL. */
RAVENSTORE_API ravenstore_code_t ravenstore_get(ravenstore_store_t* store,
                                                ravenstore_tensor_t* tensor,
                                                ravenstore_stream_t stream,
                                                const ravenstore_get_options_t* options,
                                                void** address);
RAVENSTORE_API ravenstore_code_t ravenstore_get_batch(ravenstore_store_t* store,
                                                      ravenstore_tensor_t* const* tensors,
                                                      size_t count, ravenstore_stream_t stream,
                                                      const ravenstore_get_options_t* options,
                                                      void** addresses);
/* Asks for tensors that are away, in this order, and does not wait. The next get of each takes what
 * was brought; until then it stays in Userspace, and is not put. No error if one cannot be brought:
 * its get says so. options may be NULL; RAVENSTORE_BLOCKING has no effect. */
RAVENSTORE_API ravenstore_code_t
ravenstore_begin_get_batch(ravenstore_store_t* store, ravenstore_tensor_t* const* tensors,
                           size_t count, const ravenstore_get_options_t* options);
/* 1 from a get that returned RAVENSTORE_RECOMPUTE until the put of the new bytes, else 0. Shows
 * which tensors of a batch must be recomputed. Never blocks. */
RAVENSTORE_API int32_t ravenstore_must_recompute(const ravenstore_tensor_t* tensor);
/* Get, copy all of it to `to` on `stream`, put. RAVENSTORE_RECOMPUTE: nothing was copied. */
RAVENSTORE_API ravenstore_code_t ravenstore_get_into(ravenstore_store_t* store,
                                                     ravenstore_tensor_t* tensor, void* to,
                                                     ravenstore_stream_t stream,
                                                     const ravenstore_get_options_t* options);

enum {
  RAVENSTORE_NEEDED_IN = 1,    /* needed_in_ns counts */
  RAVENSTORE_ORDER = 2,        /* order counts */
  RAVENSTORE_NOT_MODIFIED = 4, /* not written since the last put, whatever the get said */
  RAVENSTORE_NOT_NEEDED =
      8 /* will not be read again: may be dropped; a later get may return LOST */
};

/* Which of this client's tensors keep their place on the device when some have to leave. One of low
 * priority leaves before one of normal priority that is needed up to 16 times as late, and so does
 * that before one of high priority. Between clients it says nothing. */
enum {
  RAVENSTORE_PRIORITY_LOW = -1,
  RAVENSTORE_PRIORITY_NORMAL = 0, /* what a put without options says */
  RAVENSTORE_PRIORITY_HIGH = 1
};

typedef struct ravenstore_put_options {
  size_t struct_size;
  uint32_t flags;
  uint64_t needed_in_ns; /* from now, as this point of the stream */
  int64_t order;         /* among this client's tensors the smaller is needed sooner */
  /* What recomputing the bytes would take the caller; 0: it cannot. With it they may be dropped
   * instead of moved when that is cheaper, and a later get then returns RAVENSTORE_RECOMPUTE. Holds
   * until the next put. */
  uint64_t recompute_ns;
  int32_t priority; /* until the next put */
} ravenstore_put_options_t;

/* Gives the tensor to Ravenspace once the work enqueued on `stream` so far is done. No system call.
 * The address must not be used by later work. options may be NULL. */
RAVENSTORE_API ravenstore_code_t ravenstore_put(ravenstore_store_t* store,
                                                ravenstore_tensor_t* tensor,
                                                ravenstore_stream_t stream,
                                                const ravenstore_put_options_t* options);
RAVENSTORE_API ravenstore_code_t ravenstore_put_batch(ravenstore_store_t* store,
                                                      ravenstore_tensor_t* const* tensors,
                                                      size_t count, ravenstore_stream_t stream,
                                                      const ravenstore_put_options_t* options);

/* Frees the tensor once the work enqueued on `stream` so far is done, in Userspace or Ravenspace,
 * and ends the handle, also when it returns an error: the memory then comes back with a later
 * create or free, for which `stream` must still exist, at the latest when the store is
 * disconnected. Does not wait. NULL is ignored. */
RAVENSTORE_API ravenstore_code_t ravenstore_free(ravenstore_store_t* store,
                                                 ravenstore_tensor_t* tensor,
                                                 ravenstore_stream_t stream);
RAVENSTORE_API ravenstore_code_t ravenstore_free_batch(ravenstore_store_t* store,
                                                       ravenstore_tensor_t* const* tensors,
                                                       size_t count, ravenstore_stream_t stream);

/* The address while the tensor is in Userspace, else NULL. */
RAVENSTORE_API void* ravenstore_data(const ravenstore_tensor_t* tensor);
RAVENSTORE_API uint64_t ravenstore_size(const ravenstore_tensor_t* tensor);
RAVENSTORE_API uint64_t ravenstore_id(const ravenstore_tensor_t* tensor);
RAVENSTORE_API int32_t ravenstore_device(const ravenstore_tensor_t* tensor);
/* 1: a get now would find the bytes on their device; 0: not yet; negative: lost. Never blocks. */
RAVENSTORE_API int32_t ravenstore_ready(const ravenstore_tensor_t* tensor);

/* OK, or LOST once work on `stream` may have run on undefined bytes because the daemon or the
 * device died: the job should go back to its checkpoint. Never blocks. */
RAVENSTORE_API ravenstore_code_t ravenstore_check(ravenstore_store_t* store,
                                                  ravenstore_stream_t stream);

/* Marks the beginning of the caller's next iteration (a training step). Tensors of an iteration are
 * then recognised in the next one, by name or by their place in it, and brought back in time
 * without any hints. Costs what a request costs; does not wait for an answer. */
RAVENSTORE_API ravenstore_code_t ravenstore_step(ravenstore_store_t* store);

/* ---- Pinned host memory ---- */

typedef struct ravenstore_pinned_options {
  size_t struct_size;
  int32_t device;      /* the memory is on the NUMA node that this device is nearest to */
  uint64_t timeout_ns; /* 0: the store's */
} ravenstore_pinned_options_t;

/* A block of pinned host memory that every device can copy from and to, and the CPU reads and
 * writes. It is page-aligned and takes its size rounded up to 4 KiB. Its bytes are undefined: zero,
 * or what an earlier block of the same user left. What this user's processes freed is warm: the
 * next block of any of them is cut from it without pinning anything. It counts in the host budget,
 * and is the caller's until ravenstore_pinned_free or the end of the store, also when the daemon is
 * lost. A child of fork() has none of it.
 *
 * RAVENSTORE_OUT_OF_MEMORY: "pinned memory is exhausted", and who holds it. It waits, bounded, only
 * while some is on its way. options may be NULL. */
RAVENSTORE_API ravenstore_code_t ravenstore_pinned_alloc(ravenstore_store_t* store, uint64_t bytes,
                                                         const ravenstore_pinned_options_t* options,
                                                         void** address);
/* Ends the block that begins at `address`, also when it returns an error. Its bytes are used again,
 * by any process of this user, only once all work is done that was enqueued so far on the `count`
 * streams; with count 0 on every stream of this process, of every device's primary context. Does
 * not wait.
 * RAVENSTORE_CAPTURING, while a stream is captured: the memory comes back with a later alloc or
 * free. RAVENSTORE_UNSUPPORTED for count 0 with a driver before CUDA 12.5: name the streams.
 * NULL is ignored. */
RAVENSTORE_API ravenstore_code_t ravenstore_pinned_free(ravenstore_store_t* store, void* address,
                                                        const ravenstore_stream_t* streams,
                                                        size_t count);

/* ---- Figures ---- */

typedef struct ravenstore_stats {
  size_t struct_size;
  uint64_t tensors;
  uint64_t gets;
  uint64_t hits; /* gets that found the tensor on its device */
  uint64_t
      late_hits;   /* that found it on its way there: the stream waited for the remaining bytes */
  uint64_t misses; /* that had to ask for it */
  uint64_t prefetches; /* tensors that were brought before a get asked */
  uint64_t bytes_out;  /* from a device to a pool */
  uint64_t bytes_in;   /* to a device, from a pool or from another device */
  uint64_t device_bytes;
  uint64_t host_bytes;
  uint64_t device_budget;
  uint64_t host_budget;
  uint64_t stall_ns;      /* this client's calls waited so long on the CPU */
  uint64_t pinned_bytes;  /* this client's blocks of pinned memory; part of host_bytes */
  uint64_t pinned_locked; /* what is pinned for the blocks of all this user's clients */
  uint64_t page_bytes;    /* of device memory, of several devices the largest */
} ravenstore_stats_t;

/* The physical memory beneath a tensor in use stays there, also after its put, until its free or
 * ravenstore_end_keep_in_place: for network cards and others that have registered its address. It
 * counts as in use. Waits for the daemon's answer. WRONG_STATE if the tensor is not in use. While
 * its place is kept, a get on another device fails with WRONG_STATE. */
RAVENSTORE_API ravenstore_code_t ravenstore_keep_in_place(ravenstore_store_t* store,
                                                          ravenstore_tensor_t* tensor);
RAVENSTORE_API ravenstore_code_t ravenstore_end_keep_in_place(ravenstore_store_t* store,
                                                              ravenstore_tensor_t* tensor);

/* Returns device memory that holds no tensor, and pinned memory that holds no block of this user,
 * to the daemon, for others to use. Device memory is returned now, and as more comes free, until
 * this client next needs some. Does not wait. */
RAVENSTORE_API ravenstore_code_t ravenstore_trim(ravenstore_store_t* store);

/* ---- Sleep ---- */

/* All the store's tensors leave their devices, and its device memory goes back to the driver: for
 * others to use. Addresses are kept. None may be in use: put them first. What was put with
 * recompute_ns is dropped if that is less than the copy takes, and what was put unmodified needs no
 * copy. Returns when no device memory is left; *bytes is how much it was, and may be NULL. Until
 * ravenstore_wake, creates and gets fail with RAVENSTORE_WRONG_STATE.
 *
 * timeout_ns: 0 is the store's. RAVENSTORE_WRONG_STATE: which tensor is in use, or that the store
 * sleeps already. RAVENSTORE_TIMED_OUT: what has not left in time, and why; the store is awake. */
RAVENSTORE_API ravenstore_code_t ravenstore_sleep(ravenstore_store_t* store, uint64_t timeout_ns,
                                                  uint64_t* bytes);
/* Gets work again, and bring the tensors back to the addresses that they had, if the store has
 * fixed addresses. Does not bring any by itself: get those that are needed first first, in one
 * batch. No error if it is awake. */
RAVENSTORE_API ravenstore_code_t ravenstore_wake(ravenstore_store_t* store);

/* A region: memory of another allocator, such as PyTorch's, that sleeps and wakes together. It has
 * a store of its own. Each allocation is in use but while the region sleeps, and keeps its address,
 * so that pointers and captured graphs stay valid. */
typedef struct ravenstore_region ravenstore_region_t;

/* options: of its store, and may be NULL; the name is the region's. *region is the caller's until
 * ravenstore_region_close, which frees its remaining allocations. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_open(const ravenstore_connect_options_t* options,
                                                        ravenstore_region_t** region);
/* No thread is in it. NULL is ignored. */
RAVENSTORE_API void ravenstore_region_close(ravenstore_region_t* region);
/* Whose memory ravenstore_region_alloc gives this thread from now on; NULL: of none. Returns the
 * one before. */
RAVENSTORE_API ravenstore_region_t* ravenstore_region_enter(ravenstore_region_t* region);
RAVENSTORE_API ravenstore_region_t* ravenstore_region_here(void);
/* Of whose allocation the address is; NULL: of no region's. */
RAVENSTORE_API ravenstore_region_t* ravenstore_region_of(const void* address);
/* Of the thread's region, for work of any stream. NULL: there is none, or no memory. These two have
 * the form of torch.cuda.memory.CUDAPluggableAllocator's functions. */
RAVENSTORE_API void* ravenstore_region_alloc(ptrdiff_t bytes, int device,
                                             ravenstore_stream_t stream);
/* Work that uses it has ended. 0: the address is of no region's allocation. */
RAVENSTORE_API int ravenstore_region_free(void* address, ptrdiff_t bytes, int device,
                                          ravenstore_stream_t stream);

enum {
  /* The bytes are undefined after the wake, and nothing is copied. */
  RAVENSTORE_KEEP_NOTHING = 1,
  /* Nothing was written since the last wake: its copies are kept, and nothing is copied. */
  RAVENSTORE_UNCHANGED = 2
};
/* As ravenstore_sleep. Work that uses the region's memory has ended. If it fails the region is
 * awake. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_sleep(ravenstore_region_t* region,
                                                         uint32_t flags, uint64_t timeout_ns,
                                                         uint64_t* bytes);
enum {
  /* For the bytes: later work on `stream` has them. */
  RAVENSTORE_DO_NOT_WAIT = 1,
  /* Not for the memory either: allocations come in the order of their addresses. None may be used
   * before its ravenstore_region_await. */
  RAVENSTORE_IN_ORDER = 2
};
/* All its memory is where it was. If it fails, for want of room for instance, the region is asleep,
 * and may be woken again. No error if it is awake. While one that was woken in order comes, it
 * waits for the rest; if that fails the region is as it was. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_wake(ravenstore_region_t* region, uint32_t flags,
                                                        uint64_t timeout_ns,
                                                        ravenstore_stream_t stream);

/* Later work on `stream` has the bytes of the allocation with the address, whose region was woken
 * in order. No effect once all of it was waited for. RAVENSTORE_NOT_FOUND: no region has the
 * address; RAVENSTORE_WRONG_STATE: it sleeps; else as ravenstore_get: it may be called again. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_await(const void* address,
                                                         ravenstore_stream_t stream,
                                                         uint64_t timeout_ns);

/* The physical memory beneath the allocation that has the address stays there, for network cards
 * and others that have registered it; a region with such an allocation does not sleep. stays 0: not
 * any more. RAVENSTORE_NOT_FOUND: no region has the address. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_keep_in_place(void* address, int32_t stays);

/* Copies `bytes` from `address` on, of a region that sleeps, to host memory. Meanwhile the device
 * needs room for the allocation that has them. RAVENSTORE_NOT_FOUND: no region has them, or it
 * sleeps without its bytes. RAVENSTORE_WRONG_STATE: it is awake. Else as ravenstore_region_wake. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_read(const void* address, uint64_t bytes,
                                                        void* to, uint64_t timeout_ns);

/* Orders of other processes of the user, and of root: `ravenctl sleep TAG --job JOB`. From now on
 * the region takes them, as the tag of its name. job: of which job, NULL: of the program's name, or
 * of its script's if that is a Python; ranks of one job say the same. run: the process with which
 * the job began, or 0. May be called again. An order waits for ravenstore_region_obey, bounded: it
 * fails for all of the job if one is late. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_take_orders(ravenstore_region_t* region,
                                                               const char* job, uint32_t run);
/* 1: a region of this process has an order to execute, or sleeps by one. Two relaxed loads. */
RAVENSTORE_API int ravenstore_region_is_ordered(void);
/* Waits until one has an order to execute, and returns 1; 0: that is not so at the end of the time.
 * timeout_ns: 0 is no bound. */
RAVENSTORE_API int ravenstore_region_await_order(uint64_t timeout_ns);
/* Executes the region's orders. Work that uses its memory has ended. Failures are reported to
 * the process that ordered it. *asleep: 1 if the region sleeps since it was ordered to; may be
 * NULL. RAVENSTORE_LOST. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_obey(ravenstore_region_t* region,
                                                        uint64_t* asleep);

enum {
  /* Else to sleep. With RAVENSTORE_KEEP_NOTHING the bytes are undefined after the wake. */
  RAVENSTORE_ORDER_WAKE = 4
};
/* Orders all regions of other processes' that have the tag (NULL: any), and take orders as ones of
 * the job, to sleep or to wake. All or none: if one fails, is late or ends, the others undo it.
 * Without a tag elastic jobs are paused or go on as well.
 *
 * socket: as in ravenstore_connect_options. job: its name, else its run, else the number of one of
 * its clients. timeout_ns: 0 is 30 s; what undoes it may take as long again. *bytes: of device
 * memory that went back; may be NULL.
 * RAVENSTORE_NOT_FOUND: which jobs and tags there are. RAVENSTORE_TIMED_OUT: which process had not
 * done it. RAVENSTORE_LOST: which has ended. RAVENSTORE_WRONG_STATE: another order is not done. Or
 * what a region failed with, in words that name its process. */
RAVENSTORE_API ravenstore_code_t ravenstore_order_job(const char* socket, const char* job,
                                                      const char* tag, uint32_t flags,
                                                      uint64_t timeout_ns, uint64_t* bytes);

typedef struct ravenstore_region_info {
  size_t struct_size;
  uint64_t bytes; /* of its allocations */
  uint64_t allocations;
  uint64_t asleep;  /* 1: it sleeps */
  uint64_t devices; /* a bit for each of this process's devices on which it has memory */
} ravenstore_region_info_t;
/* Set info->struct_size first. */
RAVENSTORE_API ravenstore_code_t ravenstore_region_get_info(const ravenstore_region_t* region,
                                                            ravenstore_region_info_t* info);

/* ---- Named sets ---- */

/* Tensors that processes of one user share. A process fills the tensors of a store of its own, puts
 * them, and seals the store under a name. Other processes open the set, and use it: then its memory
 * is mapped there as well, without a copy. It is only to be read: a kernel that writes it ends with
 * its context. */

/* The store's tensors are a set of that name from now on, and *version (may be NULL) is its
 * version: 1, then the next number. The store refuses all other calls, its tensors have no
 * addresses any more, and it has the set open until ravenstore_disconnect. It was connected with
 * RAVENSTORE_FIXED_ADDRESSES, and all its tensors are put. Waits until the streams have come there.
 * load: of ravenstore_set_open, else 0. layout: a number of the caller's, another one for sets
 * whose bytes mean something else. RAVENSTORE_WRONG_STATE: a tensor is in use, or another process
 * loads that set. */
RAVENSTORE_API ravenstore_code_t ravenstore_set_seal(ravenstore_store_t* store, const char* name,
                                                     uint64_t load, uint64_t layout,
                                                     uint64_t* version);
/* No process opens the set any more, of that version (0: of any). It ends when no process has it
 * open. RAVENSTORE_NOT_FOUND: there is none. */
RAVENSTORE_API ravenstore_code_t ravenstore_set_drop(ravenstore_store_t* store, const char* name,
                                                     uint64_t version);

/* A set that this process has open. Close it before its store is disconnected. */
typedef struct ravenstore_set ravenstore_set_t;

enum {
  /* Where there is no such set, and no process loads it, this one is to: *load is not 0 then, and
   * *set is NULL. Others wait for it until it seals the set, or ends. */
  RAVENSTORE_MAY_LOAD = 1,
  /* No wait for a set that is not there. */
  RAVENSTORE_SET_FAIL_FAST = 2
};
typedef struct ravenstore_set_options {
  size_t struct_size;
  uint64_t version;       /* 0: the newest */
  uint64_t least_version; /* of the newest: it is waited for */
  uint64_t timeout_ns;    /* of that wait; 0: the store's */
  uint32_t flags;
} ravenstore_set_options_t;
/* options may be NULL. RAVENSTORE_TIMED_OUT, RAVENSTORE_NOT_FOUND: there is no such set.
 * RAVENSTORE_PERMISSION: this process's user is not known for certain. */
RAVENSTORE_API ravenstore_code_t ravenstore_set_open(ravenstore_store_t* store, const char* name,
                                                     const ravenstore_set_options_t* options,
                                                     ravenstore_set_t** set, uint64_t* load);
/* Ends the use. Work that reads the set has ended. NULL is ignored. */
RAVENSTORE_API void ravenstore_set_close(ravenstore_set_t* set);
/* The bytes are there when this returns, and stay until ravenstore_set_end_use. No error if it is
 * in use. timeout_ns: 0 is the store's. RAVENSTORE_OUT_OF_MEMORY: the message lists the holders of
 * the device's memory. */
RAVENSTORE_API ravenstore_code_t ravenstore_set_use(ravenstore_set_t* set, uint64_t timeout_ns);
/* The set's memory may leave the devices, if no other process uses it. Work of this process that
 * reads it has ended. Addresses are kept for the next use. */
RAVENSTORE_API ravenstore_code_t ravenstore_set_end_use(ravenstore_set_t* set);
/* The newest version, of at least least_version, takes this one's place at the same addresses; in
 * use if this one was. Work of this process that reads the set has ended.
 * RAVENSTORE_INVALID_ARGUMENT: it has another layout, and this one stays. */
RAVENSTORE_API ravenstore_code_t ravenstore_set_advance(ravenstore_set_t* set,
                                                        uint64_t least_version,
                                                        uint64_t timeout_ns);
RAVENSTORE_API uint64_t ravenstore_set_version(const ravenstore_set_t* set);
RAVENSTORE_API size_t ravenstore_set_parts(const ravenstore_set_t* set);
typedef struct ravenstore_set_part {
  size_t struct_size;
  uint64_t bytes;
  void* address;  /* the same while the set is open; NULL before the first use */
  int32_t device; /* as this process numbers it; -1: it does not see it */
} ravenstore_set_part_t;
/* The tensors of the store that was sealed, in the order in which they were created. Set
 * part->struct_size first. */
RAVENSTORE_API ravenstore_code_t ravenstore_set_get_part(const ravenstore_set_t* set, size_t index,
                                                         ravenstore_set_part_t* part);

/* This client's figures; asks the daemon. Set stats->struct_size first. */
RAVENSTORE_API ravenstore_code_t ravenstore_get_stats(ravenstore_store_t* store,
                                                      ravenstore_stats_t* stats);

/* "cuda" or "host". Valid until the store is closed. */
RAVENSTORE_API const char* ravenstore_backend(const ravenstore_store_t* store);

/* ---- Streams of the host backend (programs and tests without a GPU) ---- */

typedef struct ravenstore_host_stream* ravenstore_host_stream_t;
/* NULL when it cannot be made; ravenstore_last_error() says why. */
RAVENSTORE_API ravenstore_host_stream_t ravenstore_host_stream_create(void);
/* Waits for its work. */
RAVENSTORE_API void ravenstore_host_stream_destroy(ravenstore_host_stream_t stream);
/* Runs function(argument) on the stream, after what was enqueued before. */
RAVENSTORE_API void ravenstore_host_stream_run(ravenstore_host_stream_t stream,
                                               void (*function)(void*), void* argument);
RAVENSTORE_API void ravenstore_host_stream_synchronize(ravenstore_host_stream_t stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* RAVENSTORE_CLIENT_RAVENSTORE_H_ */
