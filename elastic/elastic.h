/* What the interceptor asks of the elastic engine: memory whose addresses never change while its
 * backing does. The backing is device memory, or pinned host memory that kernels read and write
 * over the link.
 *
 * The engine is libravenstore_elastic.so, loaded privately by the interceptor (--mode=elastic) into
 * the job's process. It finds no CUDA function by itself: `driver` gives it the real ones, so that
 * it never calls a hook.
 *
 * Order of a call that touches memory: find the addresses that it names; raven_elastic_begin() with
 * those within raven_elastic_bounds(); the real call; raven_elastic_end(). Between begin and end
 * nothing that it named is moved. begin waits for a move that has begun and, for a
 * bounded time, for what the call names to come, as long as the GPU has other work.
 *
 * Threads: any, concurrently. Nothing here takes a lock that is held across a wait for the GPU of
 * another stream. After fork() the child has none of it: raven_elastic_forget() there. No call
 * throws or ends the process; what fails gives a CUresult, and its reason goes to `log`. Sizes in
 * bytes.
 */
#ifndef RAVENSTORE_ELASTIC_ELASTIC_H_
#define RAVENSTORE_ELASTIC_ELASTIC_H_

#include <cuda.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAVEN_ELASTIC __attribute__((visibility("default")))

typedef struct raven_elastic raven_elastic_t;

/* What an engine wants of a device; bytes. */
typedef struct raven_elastic_demand {
  uint64_t in_use;    /* that the calls under way use */
  uint64_t waits_for; /* the same, with a call that waits for memory; 0: none waits */
  uint64_t expected;  /* that its calls will use at one time */
  uint64_t alive;     /* that allocations occupy at most */
  uint64_t held;      /* that it has */
} raven_elastic_demand_t;

typedef struct raven_elastic_options {
  uint64_t struct_size; /* sizeof(raven_elastic_options_t) of the caller */
  CUdevice device;
  uint64_t device_bytes; /* what the engine may hold of the device */
  uint64_t host_bytes;   /* what it may pin of the host */
  uint64_t part_bytes;   /* the size of one move; 0: 32 MiB */
  /* The real function of the driver by its exported name ("cuMemMap"), or null. */
  void* (*driver)(const char* symbol);
  /* A line for people. */
  void (*log)(const char* text);
  /* The job's ledger: the engine takes device memory or gives it back. False: over a budget. */
  int (*take)(CUdevice device, uint64_t bytes);
  void (*give)(CUdevice device, uint64_t bytes);
  /* What the engine may hold of the device now: a thread of the engine's asks twenty times a
   * second. Null: what raven_elastic_limit says. */
  uint64_t (*limit)(CUdevice device);
  /* Publishes the engine's `demand` of the device to those of the user's other jobs. Returns
   * how many engines share it: what they want stands in all[0] to all[most - 1], of this one in
   * all[*own]. They may hold *together, and this one may take *room immediately. 0: no other
   * engine shares it. A thread of the engine's calls it. Null: it never shares. */
  uint32_t (*share)(CUdevice device, const raven_elastic_demand_t* demand,
                    raven_elastic_demand_t* all, uint32_t most, uint32_t* own, uint64_t* together,
                    uint64_t* room);
  /* The file to which what the job does is recorded (docs/TRACES.md), each %p in its name being the
   * process's number; and the trace's name. Null: nothing is recorded. */
  const char* record;
  const char* record_name;
  /* 1: nothing is moved: what finds no room on the device is used on the host for good. */
  int still;
  /* A row of the page on which the engine shows where each range is stored (proto/elastic_page.h);
   * it outlives the engine. Null: nothing is shown. */
  void* shown;
  /* 1: memory on the host stays mapped at its address, and a call that runs code may touch all
   * memory. 0: it is mapped only when a call names it, and any other access fails as an illegal
   * address. The engine maps it for good at the first sign that the job reaches memory without
   * naming it. */
  uint32_t maps_away;
} raven_elastic_options_t;

/* REQUIRES: a current context of the device, which lives until close. Null: not possible here; the
 * reason was logged. */
RAVEN_ELASTIC raven_elastic_t* raven_elastic_open(const raven_elastic_options_t* options);
/* What is allocated is not to be used any more. */
RAVEN_ELASTIC void raven_elastic_close(raven_elastic_t* engine);
RAVEN_ELASTIC void raven_elastic_forget(raven_elastic_t* engine);

/* The addresses that allocations ever have: [*begin, *end). They do not change. */
RAVEN_ELASTIC void raven_elastic_bounds(const raven_elastic_t* engine, CUdeviceptr* begin,
                                        CUdeviceptr* end);

/* `bytes` at *address, usable by what is enqueued on `stream` from now on, and, with `ordered` 0,
 * by anything. CUDA_ERROR_OUT_OF_MEMORY: neither the device nor the host has room within the
 * budgets. */
RAVEN_ELASTIC CUresult raven_elastic_allocate(raven_elastic_t* engine, uint64_t bytes,
                                              CUstream stream, int ordered, CUdeviceptr* address);
/* Frees what was allocated at `address`, behind what is enqueued on `stream`; with `ordered` 0
 * behind all that names it. CUDA_ERROR_INVALID_VALUE: there is none at that address. Never waits.
 */
RAVEN_ELASTIC CUresult raven_elastic_free(raven_elastic_t* engine, CUdeviceptr address,
                                          CUstream stream, int ordered);
/* The allocation that holds `address`: its begin and size. 0: none does. */
RAVEN_ELASTIC int raven_elastic_find(raven_elastic_t* engine, CUdeviceptr address,
                                     CUdeviceptr* begin, uint64_t* bytes);

/* Physical memory of the job's own making (cuMemCreate), a segment, and addresses of its own
 * (cuMemAddressReserve) at which it maps that. What is mapped within one reservation is used
 * together: a call that names any of it names all of it, since a pointer does not tell how far it
 * is followed. */
/* 0: no such addresses are left, or `bytes` are no whole granules. */
RAVEN_ELASTIC int raven_elastic_reserve(raven_elastic_t* engine, uint64_t bytes,
                                        CUdeviceptr* address);
/* 0: nothing of that size was reserved there, or segments are mapped. */
RAVEN_ELASTIC int raven_elastic_unreserve(raven_elastic_t* engine, CUdeviceptr address,
                                          uint64_t bytes);
/* Mapped nowhere yet. CUDA_ERROR_OUT_OF_MEMORY as raven_elastic_allocate. */
RAVEN_ELASTIC CUresult raven_elastic_create_segment(raven_elastic_t* engine, uint64_t bytes,
                                                    uint32_t* segment);
/* REQUIRES: mapped nowhere. */
RAVEN_ELASTIC void raven_elastic_destroy_segment(raven_elastic_t* engine, uint32_t segment);
/* All of it, at one place. CUDA_ERROR_INVALID_VALUE: it has one, or these are no free addresses of
 * one reservation; nothing has changed. */
RAVEN_ELASTIC CUresult raven_elastic_map_segment(raven_elastic_t* engine, uint32_t segment,
                                                 CUdeviceptr address);
/* REQUIRES: nothing that was enqueued touches it. */
RAVEN_ELASTIC CUresult raven_elastic_unmap_segment(raven_elastic_t* engine, uint32_t segment);
/* The segment's bytes go to the driver's `handle`, which is mapped in its place: *address, or 0
 * where it was mapped nowhere. The segment is no more. Waits for what may touch it, at most 10 s.
 */
RAVEN_ELASTIC CUresult raven_elastic_hand_over(raven_elastic_t* engine, uint32_t segment,
                                               CUmemGenericAllocationHandle handle,
                                               CUdeviceptr* address);

/* What one call touches. */
typedef struct raven_elastic_use {
  uint64_t identity; /* distinguishes it from other calls: its kernel and shape, or its kind; the
                        same in each step */
  CUstream stream;
  const CUdeviceptr* addresses; /* any address within what is touched */
  uint32_t count;
  uint32_t unknown; /* 1: it may touch any of it (no parameter information, a graph that cannot be
                       read) */
  const char* kind; /* for people: the driver's function that was called; null: not given */
  CUfunction function; /* of a launch, or a CUkernel; else null */
  uint64_t code;    /* of a launch or a graph: the same for each of the same code, as long as that
                       is loaded; 0: it runs no code */
  uint64_t pattern; /* which words of its parameters may be addresses */
  const CUdeviceptr* others; /* words that may be addresses of other memory of the device */
  uint32_t other_count;
} raven_elastic_use_t;

/* What begin has to give end. */
typedef struct raven_elastic_token {
  uint64_t opaque[40];
} raven_elastic_token_t;

RAVEN_ELASTIC void raven_elastic_begin(raven_elastic_t* engine, const raven_elastic_use_t* use,
                                       raven_elastic_token_t* token);
/* `enqueued`: the real call succeeded. */
RAVEN_ELASTIC void raven_elastic_end(raven_elastic_t* engine, raven_elastic_token_t* token,
                                     int enqueued);

/* The allocation at `address` stays where it is from now on, for good, and can be reached: its
 * address went where no use is seen (an exported handle, a registration, a table in device memory).
 * `followed` 1: kernels read it there, and may follow other addresses that the engine did not see.
 */
RAVEN_ELASTIC void raven_elastic_pin(raven_elastic_t* engine, CUdeviceptr address, int followed);
/* From now on all memory can be reached, on the device and on the host, as with maps_away: the
 * driver will look at addresses, or kernels follow them, that no use names. */
RAVEN_ELASTIC void raven_elastic_reach_all(raven_elastic_t* engine);
/* A call of the driver's returned CUDA_ERROR_ILLEGAL_ADDRESS: the engine says what that may mean.
 */
RAVEN_ELASTIC void raven_elastic_illegal_address(raven_elastic_t* engine);
/* The stream or context is about to be destroyed: waits for the engine's own calls on it, not for
 * its work. */
RAVEN_ELASTIC void raven_elastic_stream_gone(raven_elastic_t* engine, CUstream stream);

/* The device memory that the engine may hold changes while the job runs. */
RAVEN_ELASTIC void raven_elastic_limit(raven_elastic_t* engine, uint64_t device_bytes);

typedef struct raven_elastic_stats {
  uint64_t struct_size;
  uint64_t live_bytes;   /* allocated and not freed */
  uint64_t device_bytes; /* of the device held, unused parts included */
  uint64_t host_bytes;   /* pinned, unused parts included */
  uint64_t away_bytes;   /* live, on the host */
  uint64_t pinned_bytes; /* live, never moved */
  uint64_t peak_bytes;   /* the most that was live */
  uint64_t moved_in_bytes;
  uint64_t moved_out_bytes;
  uint64_t dropped_bytes; /* freed parts that were taken without a copy */
  uint64_t uses;
  uint64_t uses_in_place;  /* that named something on the host */
  uint64_t bytes_in_place; /* what these named there */
  uint64_t waits;          /* of calls, for what they name to move */
  uint64_t waited_ns;
  uint64_t room_waits; /* of allocations, for room on the device */
  uint64_t room_waited_ns;
  uint64_t enough_bytes; /* device bytes with which, as observed, no call would have waited and no
                            data would have been on the host */
} raven_elastic_stats_t;
RAVEN_ELASTIC void raven_elastic_stats(raven_elastic_t* engine, raven_elastic_stats_t* stats);

/* Has what was recorded so far written and waits for that, two seconds at most. Writes a line about
 * it for people to `text`, at most `room` bytes with its 0. 0: nothing was to be recorded. */
RAVEN_ELASTIC int raven_elastic_recorded(raven_elastic_t* engine, char* text, uint64_t room);

#ifdef __cplusplus
}
#endif

#endif /* RAVENSTORE_ELASTIC_ELASTIC_H_ */
