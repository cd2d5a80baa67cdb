/* A stand-in for libnvidia-ml.so.1, driven by a text file: for tests, demonstrations, benchmarks.
 *
 * Layouts follow the ctypes structures of nvidia-ml-py, so that the real nvidia-ml-py (and what is
 * built on it) is what a test exercises. The file named in FAKE_NVML_CONF is looked at on every
 * call (at most every 20 us) and read again when its mtime, size or inode changed: replace it by
 * rename. Safe to call from several threads; a delay sleeps outside the lock, so that one hung GPU
 * does not hold the others.
 *
 *   driver 550.54.15 | nvml 12.550.54.15 | cuda 12040
 *   init_error CODE            nvmlInit answers CODE
 *   gpu I key=value ...        I counts from 0, in any order
 *        name (_ is a space) uuid bus serial minor total used base reserved util memutil temp
 *        power limit (W) fan energy clock memclock persistence ecc mig (0/1) reasons brand
 *        ecc_errors ecc_corrected (since the driver was loaded) retired (pages) remapped (rows)
 *        remap_pending remap_failure accounting (0/1) numa (node) addressing (0 none 1 HMM 2 ATS)
 *        events (mask of supported event types) cc (compute capability, as 90 for 9.0)
 *        answer=TOTAL/FREE/USED  what the memory queries say instead, whatever is in use
 *        Sizes take K M G T. The value "na" makes that query NOT_SUPPORTED.
 *        used: fixed (plus the growth of its processes); without it: base + its live processes.
 *   mig I gi= ci= total= used= base= reserved= uuid= name=      one instance on GPU I
 *   proc I pid= mem=N|na type=C|G|M|CG.. gi= ci= sm= [rate=N] [max=N] [since=EPOCH] [alive=1]
 *        [peak=N]  what accounting says of it; type=- mem=0 peak=N is a process that has gone.
 *        [began=N] [lasted=N]  microseconds of its start and milliseconds of its life, there too.
 *        sm=na: no utilisation sample of it.
 *        rate: memory grows by N bytes (K M G allowed) per second from the moment the line was
 *        first seen by this process (or from the epoch second `since`), never above max.
 *        alive=1: the line counts only while the pid exists and is not a zombie.
 *   event I type=8 data=79 [gi= ci=]   handed out once by nvmlEventSetWait, to who registered for
 *                              it; a line that was added to the file later comes then
 *   limits I group=PATTERN soft=N hard=N [used=N]   of the control groups whose directory fits (*
 *                              and ?); used: else what all processes of the GPU hold. A world
 *                              without such a line answers NOT_SUPPORTED
 *   fail FUNC GPU CODE         FUNC is the entry point (nvmlDeviceGetMemoryInfo_v2), GPU is "1",
 *   delay FUNC GPU MICROSEC    or "1:0" (first MIG instance of GPU 1); both may hold * and ?
 *   procs_v3_fail_second [N]   the list "grew" between sizing and reading: the first N reads with a
 *                              buffer (all, without N) answer INSUFFICIENT_SIZE
 *   procs_widened              version 3 of the lists has entries of 32 bytes, as some 535 drivers had
 *   procutil_room N            utilisation samples need a buffer for N, however few there are
 *   procutil_success           the sizing call for utilisation samples answers SUCCESS when there are
 *                              none, instead of NOT_FOUND
 *   wobble SEED                utilisation, temperature, power, clock and sm of what is busy move from
 *                              second to second, the same way for the same seed
 *   event_look_ms N            look for new events every N ms (20), as the wait of a real driver wakes
 *                              nobody
 *   v2_inclusive               memory v2 `used` holds the reserve too (as one driver manual says)
 *
 * FAKE_NVML_STATS=path: calls per entry point, written at exit ("name count" a line); and
 * "shutdown_in_wait" when NVML was shut down, or an event set freed, while somebody waited on it.
 * fakenvml_set_time(double epoch_s) replaces the clock of growth and wobble.
 * Compiled with -DNO_DETAIL_LIST it lacks the symbol by which clients know a later 535 driver.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
  TIMEOUT = 10, FUNCTION_NOT_FOUND = 13
};
#define NA UINT64_MAX
#define MAX_GPUS 32
#define MAX_MIGS 8
#define MAX_PROCS 2048
#define MAX_RULES 128
#define MAX_EVENTS 64
#define TEXT 96

typedef struct { int gpu, mig; } Handle; /* mig < 0: the card itself */

typedef struct {
  int present, has_used, mig_mode, gi, ci, minor;
  char name[TEXT], uuid[TEXT], bus[32], serial[32];
  uint64_t total, used, base, reserved, util, memutil, temp, power, limit, fan, energy, clock,
      memclock, persistence, ecc, reasons, ecc_errors, ecc_corrected, retired, remapped,
      remap_pending, remap_failure, accounting, numa, addressing, events, cc, answer[3];
} Unit;

typedef struct {
  int gpu, gi, ci, alive, next, twin; /* next on this GPU; earlier entry of the same pid */
  unsigned pid;
  uint64_t mem, max, peak, sm, began, lasted;
  double rate, since;
  char type[8];
} Proc;

typedef struct { char func[TEXT], gpu[16]; long value; } Rule;
typedef struct { int gpu; unsigned gi, ci; uint64_t type, data; char line[TEXT]; } Event;
typedef struct { int gpu; uint64_t soft, hard, used; char group[256]; } Limit;

typedef struct {
  char driver[TEXT], nvml[TEXT];
  int cuda, init_error, gpus, migs[MAX_GPUS], nprocs, nfails, ndelays, nevents, inclusive, widened,
      procutil_success, procutil_room, wobble, event_look_ms, nlimits, first[MAX_GPUS], last[MAX_GPUS];
  int fail_second; /* how many buffered reads fail; -1: all */
  Unit gpu[MAX_GPUS], mig[MAX_GPUS][MAX_MIGS];
  Proc procs[MAX_PROCS];
  Rule fails[MAX_RULES], delays[MAX_RULES];
  Event events[MAX_EVENTS];
  Limit limits[MAX_GPUS];
} World;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static World world;
static struct { time_t s; long ns; off_t size; ino_t inode; int valid; } seen_file;
static int initialised, waiting;
static uint64_t registered[MAX_GPUS];
static struct { char line[TEXT]; int times; } handed[MAX_EVENTS * 4]; /* event lines given out */
static int nhanded;
static Handle card[MAX_GPUS], slice[MAX_GPUS][MAX_MIGS];
static struct { const char *name; unsigned long calls; } stats[256];
static int nstats;
static struct { char line[1024]; double at; } first_seen[MAX_PROCS];
static int nfirst;

/* ---- the file ------------------------------------------------------------------------------ */

static double time_set;
void fakenvml_set_time(double epoch_s) { time_set = epoch_s; }
static double now_s(void) {
  if (time_set > 0) return time_set;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t number(const char *text) {
  if (strcmp(text, "na") == 0) return NA;
  char *end;
  double scale = 1, value = strtod(text, &end);
  switch (*end) {
    case 'K': scale = 1024.0; break;
    case 'M': scale = 1024.0 * 1024; break;
    case 'G': scale = 1024.0 * 1024 * 1024; break;
    case 'T': scale = 1024.0 * 1024 * 1024 * 1024; break;
  }
  /* Whole numbers stay exact above 2^53. */
  return scale == 1 && !strchr(text, '.') ? strtoull(text, NULL, 10) : (uint64_t)(value * scale);
}

static void words(char *to, size_t room, const char *from) {
  snprintf(to, room, "%s", from);
  for (; *to; to++)
    if (*to == '_') *to = ' ';
}

static void unit_key(Unit *u, const char *key, const char *value) {
  struct { const char *name; uint64_t *to; } numbers[] = {
      {"total", &u->total}, {"base", &u->base}, {"reserved", &u->reserved}, {"util", &u->util},
      {"memutil", &u->memutil}, {"temp", &u->temp}, {"power", &u->power}, {"limit", &u->limit},
      {"fan", &u->fan}, {"energy", &u->energy}, {"clock", &u->clock},
      {"memclock", &u->memclock}, {"persistence", &u->persistence}, {"ecc", &u->ecc},
      {"reasons", &u->reasons}, {"ecc_errors", &u->ecc_errors},
      {"ecc_corrected", &u->ecc_corrected}, {"retired", &u->retired}, {"remapped", &u->remapped},
      {"remap_pending", &u->remap_pending}, {"remap_failure", &u->remap_failure},
      {"accounting", &u->accounting}, {"numa", &u->numa}, {"addressing", &u->addressing},
      {"events", &u->events}, {"cc", &u->cc}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (strcmp(key, numbers[i].name) == 0) { *numbers[i].to = number(value); return; }
  if (strcmp(key, "used") == 0) { u->used = number(value); u->has_used = 1; }
  else if (strcmp(key, "name") == 0) words(u->name, sizeof u->name, value);
  else if (strcmp(key, "uuid") == 0) snprintf(u->uuid, sizeof u->uuid, "%s", value);
  else if (strcmp(key, "bus") == 0) snprintf(u->bus, sizeof u->bus, "%s", value);
  else if (strcmp(key, "serial") == 0) snprintf(u->serial, sizeof u->serial, "%s", value);
  else if (strcmp(key, "answer") == 0) {
    char part[3][32];
    if (sscanf(value, "%31[^/]/%31[^/]/%31s", part[0], part[1], part[2]) == 3)
      for (int i = 0; i < 3; i++) u->answer[i] = number(part[i]);
  }
  else if (strcmp(key, "minor") == 0) u->minor = atoi(value);
  else if (strcmp(key, "mig") == 0) u->mig_mode = atoi(value);
  else if (strcmp(key, "gi") == 0) u->gi = atoi(value);
  else if (strcmp(key, "ci") == 0) u->ci = atoi(value);
}

static void unit_defaults(Unit *u, int gpu, int mig) {
  memset(u, 0, sizeof *u);
  u->present = 1;
  u->minor = gpu;
  u->total = 24ULL << 30;
  u->memutil = u->util = 0;
  u->temp = 40; u->power = 60; u->limit = 300; u->clock = 1410; u->memclock = 1215;
  u->fan = u->ecc = u->ecc_errors = u->ecc_corrected = u->retired = u->remapped = NA;
  u->numa = u->addressing = u->events = u->cc = u->answer[0] = NA;
  snprintf(u->bus, sizeof u->bus, "00000000:%02X:00.0", gpu + 1);
  if (mig < 0) {
    snprintf(u->name, sizeof u->name, "NVIDIA Test GPU");
    snprintf(u->uuid, sizeof u->uuid, "GPU-00000000-0000-0000-0000-%012d", gpu);
  } else {
    u->total = 10ULL << 30;
    u->gi = mig + 1;
    snprintf(u->name, sizeof u->name, "NVIDIA Test GPU MIG");
    snprintf(u->uuid, sizeof u->uuid, "MIG-00000000-0000-0000-%04d-%012d", gpu, mig);
  }
}

static double seen_at(const char *line) {
  for (int i = 0; i < nfirst; i++)
    if (strcmp(first_seen[i].line, line) == 0) return first_seen[i].at;
  if (nfirst == MAX_PROCS) nfirst = 0;
  snprintf(first_seen[nfirst].line, sizeof first_seen[nfirst].line, "%s", line);
  return first_seen[nfirst++].at = now_s();
}

static void proc_line(World *w, int gpu, char *rest, const char *line) {
  if (w->nprocs == MAX_PROCS) return;
  int self = w->nprocs++;
  Proc *p = &w->procs[self];
  memset(p, 0, sizeof *p);
  p->gpu = gpu; p->gi = p->ci = p->next = p->twin = -1; p->max = p->peak = NA;
  strcpy(p->type, "C");
  for (char *save, *word = strtok_r(rest, " \t\r\n", &save); word; word = strtok_r(NULL, " \t\r\n", &save)) {
    char *value = strchr(word, '=');
    if (!value) continue;
    *value++ = 0;
    if (strcmp(word, "pid") == 0) p->pid = (unsigned)strtoul(value, NULL, 10);
    else if (strcmp(word, "mem") == 0) p->mem = number(value);
    else if (strcmp(word, "max") == 0) p->max = number(value);
    else if (strcmp(word, "rate") == 0) p->rate = *value == '-' ? -(double)number(value + 1) : (double)number(value);
    else if (strcmp(word, "since") == 0) p->since = strtod(value, NULL);
    else if (strcmp(word, "type") == 0) snprintf(p->type, sizeof p->type, "%s", value);
    else if (strcmp(word, "gi") == 0) p->gi = atoi(value);
    else if (strcmp(word, "ci") == 0) p->ci = atoi(value);
    else if (strcmp(word, "peak") == 0) p->peak = number(value);
    else if (strcmp(word, "began") == 0) p->began = number(value);
    else if (strcmp(word, "lasted") == 0) p->lasted = number(value);
    else if (strcmp(word, "sm") == 0) p->sm = number(value);
    else if (strcmp(word, "alive") == 0) p->alive = atoi(value);
  }
  if (p->rate != 0 && p->since == 0) p->since = seen_at(line);
  for (int i = w->first[gpu]; i >= 0; i = w->procs[i].next)
    if (w->procs[i].pid == p->pid) p->twin = i;
  if (w->first[gpu] < 0) w->first[gpu] = self;
  else w->procs[w->last[gpu]].next = self;
  w->last[gpu] = self;
}

static void unit_line(World *w, int gpu, char *rest, int is_mig) {
  if (is_mig && w->migs[gpu] == MAX_MIGS) return;
  Unit *u = is_mig ? &w->mig[gpu][w->migs[gpu]] : &w->gpu[gpu];
  unit_defaults(u, gpu, is_mig ? w->migs[gpu] : -1);
  if (is_mig) w->migs[gpu]++;
  else if (gpu >= w->gpus) w->gpus = gpu + 1;
  for (char *save, *word = strtok_r(rest, " \t\r\n", &save); word; word = strtok_r(NULL, " \t\r\n", &save)) {
    char *value = strchr(word, '=');
    if (value) { *value++ = 0; unit_key(u, word, value); }
  }
}

static void rule_line(Rule *rules, int *count, const char *rest) {
  if (*count < MAX_RULES &&
      sscanf(rest, "%95s %15s %ld", rules[*count].func, rules[*count].gpu, &rules[*count].value) == 3)
    ++*count;
}

static void event_line(World *w, int gpu, char *rest, const char *line) {
  if (w->nevents == MAX_EVENTS) return;
  Event *e = &w->events[w->nevents++];
  memset(e, 0, sizeof *e);
  e->gpu = gpu; e->type = 8; e->gi = e->ci = 0xFFFFFFFF;
  snprintf(e->line, sizeof e->line, "%.95s", line);
  for (char *save, *word = strtok_r(rest, " \t\r\n", &save); word; word = strtok_r(NULL, " \t\r\n", &save)) {
    char *value = strchr(word, '=');
    if (!value) continue;
    *value++ = 0;
    if (strcmp(word, "type") == 0) e->type = number(value);
    else if (strcmp(word, "data") == 0) e->data = number(value);
    else if (strcmp(word, "gi") == 0) e->gi = (unsigned)atoi(value);
    else if (strcmp(word, "ci") == 0) e->ci = (unsigned)atoi(value);
  }
}

static void limits_line(World *w, int gpu, char *rest) {
  if (w->nlimits == MAX_GPUS) return;
  Limit *l = &w->limits[w->nlimits++];
  *l = (Limit){gpu, 0, NA, NA, "*"};
  for (char *save, *word = strtok_r(rest, " \t\r\n", &save); word; word = strtok_r(NULL, " \t\r\n", &save)) {
    char *value = strchr(word, '=');
    if (!value) continue;
    *value++ = 0;
    if (strcmp(word, "soft") == 0) l->soft = number(value);
    else if (strcmp(word, "hard") == 0) l->hard = number(value);
    else if (strcmp(word, "used") == 0) l->used = number(value);
    else if (strcmp(word, "group") == 0) snprintf(l->group, sizeof l->group, "%s", value);
  }
}

static void one_line(World *w, char *line) {
  char whole[1024], *rest;
  snprintf(whole, sizeof whole, "%s", line);
  char *verb = strtok_r(line, " \t\r\n", &rest);
  if (!verb || *verb == '#') return;
  if (strcmp(verb, "procs_v3_fail_second") == 0) {
    w->fail_second = -1;
    sscanf(rest, "%d", &w->fail_second);
  } else if (strcmp(verb, "v2_inclusive") == 0) w->inclusive = 1;
  else if (strcmp(verb, "procs_widened") == 0) w->widened = 1;
  else if (strcmp(verb, "procutil_success") == 0) w->procutil_success = 1;
  else if (strcmp(verb, "procutil_room") == 0) sscanf(rest, "%d", &w->procutil_room);
  else if (strcmp(verb, "wobble") == 0) sscanf(rest, "%d", &w->wobble);
  else if (strcmp(verb, "event_look_ms") == 0) sscanf(rest, "%d", &w->event_look_ms);
  else if (strcmp(verb, "driver") == 0) sscanf(rest, "%95s", w->driver);
  else if (strcmp(verb, "nvml") == 0) sscanf(rest, "%95s", w->nvml);
  else if (strcmp(verb, "cuda") == 0) sscanf(rest, "%d", &w->cuda);
  else if (strcmp(verb, "init_error") == 0) sscanf(rest, "%d", &w->init_error);
  else if (strcmp(verb, "fail") == 0) rule_line(w->fails, &w->nfails, rest);
  else if (strcmp(verb, "delay") == 0) rule_line(w->delays, &w->ndelays, rest);
  else {
    char *index = strtok_r(NULL, " \t\r\n", &rest);
    int gpu = index ? atoi(index) : -1;
    if (gpu < 0 || gpu >= MAX_GPUS) return;
    if (strcmp(verb, "gpu") == 0) unit_line(w, gpu, rest, 0);
    else if (strcmp(verb, "mig") == 0) unit_line(w, gpu, rest, 1);
    else if (strcmp(verb, "proc") == 0) proc_line(w, gpu, rest, whole);
    else if (strcmp(verb, "event") == 0) event_line(w, gpu, rest, whole);
    else if (strcmp(verb, "limits") == 0) limits_line(w, gpu, rest);
  }
}

/* Under the lock. Looking costs as much as all the rest of a call, and no file is replaced within
 * microseconds: calls that follow each other at once share a look. */
static void refresh(void) {
  static double looked_at;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  double now = (double)t.tv_sec + (double)t.tv_nsec / 1e9;
  if (seen_file.valid && now - looked_at < 20e-6) return;
  looked_at = now;
  const char *path = getenv("FAKE_NVML_CONF");
  struct stat s;
  if (!path || stat(path, &s) != 0) return;
  if (seen_file.valid && seen_file.s == s.st_mtime && seen_file.size == s.st_size &&
#ifdef __APPLE__
      seen_file.ns == s.st_mtimespec.tv_nsec &&
#else
      seen_file.ns == s.st_mtim.tv_nsec &&
#endif
      seen_file.inode == s.st_ino)
    return;
  FILE *f = fopen(path, "r");
  if (!f) return;
  static World fresh;
  memset(&fresh, 0, sizeof fresh);
  strcpy(fresh.driver, "550.54.15");
  strcpy(fresh.nvml, "12.550.54.15");
  fresh.cuda = 12040;
  fresh.event_look_ms = 20;
  for (int i = 0; i < MAX_GPUS; i++) fresh.first[i] = fresh.last[i] = -1;
  char line[1024];
  while (fgets(line, sizeof line, f)) one_line(&fresh, line);
  fclose(f);
  world = fresh;
  seen_file.s = s.st_mtime; seen_file.size = s.st_size; seen_file.inode = s.st_ino;
#ifdef __APPLE__
  seen_file.ns = s.st_mtimespec.tv_nsec;
#else
  seen_file.ns = s.st_mtim.tv_nsec;
#endif
  seen_file.valid = 1;
}

/* ---- statistics ---------------------------------------------------------------------------- */

static void write_stats(void) {
  const char *path = getenv("FAKE_NVML_STATS");
  FILE *f = path ? fopen(path, "w") : NULL;
  if (!f) return;
  for (int i = 0; i < nstats; i++) fprintf(f, "%s %lu\n", stats[i].name, stats[i].calls);
  fclose(f);
}

static void count(const char *name) { /* under the lock; name is a literal */
  static int registered;
  if (!registered) { registered = 1; atexit(write_stats); }
  for (int i = 0; i < nstats; i++)
    if (stats[i].name == name) { stats[i].calls++; return; }
  for (int i = 0; i < nstats; i++)
    if (strcmp(stats[i].name, name) == 0) { stats[i].calls++; return; }
  if (nstats < 256) { stats[nstats].name = name; stats[nstats++].calls = 1; }
}

/* ---- entering a call ----------------------------------------------------------------------- */

static long rule_for(const Rule *rules, int n, const char *func, const char *gpu, long none) {
  for (int i = 0; i < n; i++)
    if (fnmatch(rules[i].func, func, 0) == 0 && fnmatch(rules[i].gpu, gpu, 0) == 0)
      return rules[i].value;
  return none;
}

/* Takes the lock and keeps it when the answer is OK. */
static int enter_again(const char *func, const Handle *h, int needs_init, int first) {
  char gpu[16] = "-";
  if (h && h->mig < 0) snprintf(gpu, sizeof gpu, "%d", h->gpu);
  else if (h) snprintf(gpu, sizeof gpu, "%d:%d", h->gpu, h->mig);
  pthread_mutex_lock(&lock);
  refresh();
  if (first) count(func);
  long wait_us = !first ? 0 : rule_for(world.delays, world.ndelays, func, gpu, 0);
  if (wait_us > 0) {
    pthread_mutex_unlock(&lock);
    struct timespec t = {wait_us / 1000000, (wait_us % 1000000) * 1000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
    pthread_mutex_lock(&lock);
  }
  int code = (int)rule_for(world.fails, world.nfails, func, gpu, OK);
  if (needs_init && !initialised) code = UNINITIALIZED;
  else if (h && code == OK &&
           !(h->mig < 0 ? world.gpu[h->gpu].present : h->mig < world.migs[h->gpu]))
    code = INVALID;
  if (code != OK) pthread_mutex_unlock(&lock);
  return code;
}

static int enter(const char *func, const Handle *h, int needs_init) {
  return enter_again(func, h, needs_init, 1);
}

#define LEAVE(code) do { int c_ = (code); pthread_mutex_unlock(&lock); return c_; } while (0)
#define BEGIN(h) do { \
    if (!(h)) return INVALID; \
    int e_ = enter(__func__, (h), 1); \
    if (e_ != OK) return e_; \
  } while (0)
#define BEGIN_SYSTEM(init) do { int e_ = enter(__func__, NULL, (init)); if (e_ != OK) return e_; } while (0)

static Unit *unit(const Handle *h) {
  return h->mig < 0 ? &world.gpu[h->gpu] : &world.mig[h->gpu][h->mig];
}

/* A value from -1 to 1 that belongs to this seed, unit, gauge and moment. */
static double noise(int unit_number, int gauge, uint64_t moment) {
  uint64_t x = ((uint64_t)world.wobble << 48) ^ ((uint64_t)unit_number << 40) ^ ((uint64_t)gauge << 32) ^ moment;
  x = (x + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return (double)((x ^ (x >> 31)) >> 11) / (1ULL << 52) - 1;
}

/* What a gauge shows: of a busy unit it moves by so much, plus a slow part that takes minutes. */
enum { UTIL = 1, MEM_UTIL, TEMP, POWER, CLOCK, SM };
static uint64_t moved(const Handle *h, int gauge, uint64_t value, double fast, double slow) {
  if (!world.wobble || value == NA || value == 0 || !unit(h)->util) return value;
  double now = now_s(), part = now / 120 - (double)(uint64_t)(now / 120);
  uint64_t minute = (uint64_t)(now / 120);
  double result = (double)value + fast * noise(h->gpu, gauge, (uint64_t)now) +
      slow * ((1 - part) * noise(h->gpu, gauge + 16, minute) + part * noise(h->gpu, gauge + 16, minute + 1));
  double most = gauge <= MEM_UTIL || gauge >= SM ? 100 : result;
  return (uint64_t)(result < 0 ? 0 : result > most ? most : result + 0.5);
}

static int text_out(char *to, unsigned room, const char *from) {
  if (strlen(from) + 1 > room) return TOO_SMALL;
  strcpy(to, from);
  return OK;
}

static int number_out(unsigned *to, uint64_t value) {
  if (value == NA) return NOT_SUPPORTED;
  *to = (unsigned)value;
  return OK;
}

/* ---- processes and memory ------------------------------------------------------------------ */

static int is_alive(unsigned pid) {
  char path[64], text[512];
  if (kill((pid_t)pid, 0) != 0 && errno != EPERM) return 0;
  snprintf(path, sizeof path, "/proc/%u/stat", pid);
  FILE *f = fopen(path, "r");
  if (!f) return 1;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[n] = 0;
  char *end = strrchr(text, ')');
  return !(end && end[1] && end[2] == 'Z');
}

static uint64_t memory_of(const Proc *p) {
  if (p->mem == NA || p->rate == 0) return p->mem;
  double value = (double)p->mem + p->rate * (now_s() - p->since);
  if (value < 0) value = 0;
  uint64_t bytes = (uint64_t)value;
  return p->max != NA && bytes > p->max ? p->max : bytes;
}

static int on(const Proc *p, const Handle *h) {
  if (p->gpu != h->gpu) return 0;
  if (h->mig >= 0) {
    const Unit *u = unit(h);
    if (p->gi != u->gi || (p->ci >= 0 && p->ci != u->ci)) return 0;
  }
  return !p->alive || is_alive(p->pid);
}

static uint64_t used_of(const Handle *h) {
  const Unit *u = unit(h);
  if (u->has_used && u->used == NA) return NA;
  uint64_t sum = u->has_used ? u->used : u->base;
  for (int i = world.first[h->gpu]; i >= 0; i = world.procs[i].next) {
    const Proc *p = &world.procs[i];
    int again = 0; /* one pid in two lists holds its memory once */
    for (int j = p->twin; j >= 0 && !again; j = world.procs[j].twin) again = on(&world.procs[j], h);
    if (again || p->mem == NA || !on(p, h)) continue;
    sum += u->has_used ? memory_of(p) - p->mem : memory_of(p);
  }
  return sum > u->total ? u->total : sum;
}

typedef struct { unsigned long long total, free, used; } Memory1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned pid; unsigned long long mem; } Proc1;
typedef struct { unsigned pid; unsigned long long mem; unsigned gi, ci; } Proc2;
typedef struct { unsigned pid; unsigned long long mem; unsigned gi, ci; unsigned long long cc; } Proc3;

static int memory(const Handle *h, Memory2 *m) {
  const Unit *u = unit(h);
  uint64_t used = used_of(h);
  if (u->total == NA || used == NA) return NOT_SUPPORTED;
  uint64_t reserved = u->reserved == NA ? 0 : u->reserved;
  m->total = u->total;
  m->reserved = reserved;
  m->free = u->total > used + reserved ? u->total - used - reserved : 0;
  m->used = used + (world.inclusive ? reserved : 0);
  if (u->answer[0] != NA) { m->total = u->answer[0]; m->free = u->answer[1]; m->used = u->answer[2]; }
  return OK;
}

int nvmlDeviceGetMemoryInfo(Handle *h, Memory1 *m) {
  BEGIN(h);
  Memory2 full;
  int code = memory(h, &full);
  if (code == OK) {
    m->total = full.total;
    m->free = full.free;
    m->used = unit(h)->answer[0] == NA ? full.total - full.free : full.used;
  }
  LEAVE(code);
}

int nvmlDeviceGetMemoryInfo_v2(Handle *h, Memory2 *m) {
  BEGIN(h);
  LEAVE(memory(h, m));
}

int nvmlDeviceGetBAR1MemoryInfo(Handle *h, Memory1 *m) {
  BEGIN(h);
  m->total = 256ULL << 20;
  m->used = 4ULL << 20;
  m->free = m->total - m->used;
  LEAVE(OK);
}

static int list(Handle *h, unsigned *n, void *to, char type, int version) {
  unsigned found = 0;
  for (int i = world.first[h->gpu]; i >= 0; i = world.procs[i].next)
    found += strchr(world.procs[i].type, type) && on(&world.procs[i], h);
  unsigned room = to ? *n : 0;
  if (to && type == 'C' && world.fail_second) {
    if (world.fail_second > 0) world.fail_second--;
    *n = found > room ? found : room + 1;
    return TOO_SMALL;
  }
  *n = found;
  if (found > room) return TOO_SMALL;
  unsigned k = 0;
  for (int i = world.first[h->gpu]; i >= 0 && k < found; i = world.procs[i].next) {
    const Proc *p = &world.procs[i];
    if (!strchr(p->type, type) || !on(p, h)) continue;
    if (version == 3 && world.widened) {
      /* What does not fit into a buffer of narrow entries is left out, so that nothing breaks. */
      if ((k + 1) * sizeof(Proc3) > room * sizeof(Proc2)) break;
      Proc3 entry = {p->pid, memory_of(p), (unsigned)p->gi, (unsigned)p->ci, 0};
      ((Proc3 *)to)[k++] = entry;
    } else if (version == 1) {
      Proc1 entry = {p->pid, memory_of(p)};
      ((Proc1 *)to)[k++] = entry;
    } else {
      Proc2 entry = {p->pid, memory_of(p), (unsigned)p->gi, (unsigned)p->ci};
      ((Proc2 *)to)[k++] = entry;
    }
  }
  *n = world.widened ? found : k;
  return OK;
}

#define LIST(NAME, VERSION, TYPE) \
  int NAME(Handle *h, unsigned *n, void *to) { BEGIN(h); LEAVE(list(h, n, to, TYPE, VERSION)); }
LIST(nvmlDeviceGetComputeRunningProcesses, 1, 'C')
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 2, 'C')
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 3, 'C')
LIST(nvmlDeviceGetGraphicsRunningProcesses, 1, 'G')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 2, 'G')
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 3, 'G')
LIST(nvmlDeviceGetMPSComputeRunningProcesses, 1, 'M')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2, 'M')
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 3, 'M')

/* nvitop asks for these two only to learn which process structure the driver uses. */
int nvmlDeviceGetConfComputeMemSizeInfo(Handle *h, void *to) { (void)to; BEGIN(h); LEAVE(NOT_SUPPORTED); }
#ifndef NO_DETAIL_LIST
int nvmlDeviceGetRunningProcessDetailList(Handle *h, void *to) { (void)to; BEGIN(h); LEAVE(NOT_SUPPORTED); }
#endif

typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } Sample;
int nvmlDeviceGetProcessUtilization(Handle *h, Sample *to, unsigned *n, unsigned long long since) {
  BEGIN(h);
  if (h->mig >= 0 || unit(h)->mig_mode) LEAVE(NOT_SUPPORTED);
  unsigned found = 0, room = to ? *n : 0;
  uint64_t at = (uint64_t)(now_s() * 1e6);
  for (int i = world.first[h->gpu]; i >= 0; i = world.procs[i].next)
    found += world.procs[i].sm != NA && since < at && on(&world.procs[i], h);
  *n = found;
  if (found == 0) LEAVE(world.procutil_success ? OK : NOT_FOUND);
  if (found > room || (unsigned)world.procutil_room > room) {
    if (found < (unsigned)world.procutil_room) *n = (unsigned)world.procutil_room;
    LEAVE(TOO_SMALL);
  }
  unsigned k = 0;
  for (int i = world.first[h->gpu]; i >= 0 && k < found; i = world.procs[i].next) {
    const Proc *p = &world.procs[i];
    if (p->sm == NA || !on(p, h)) continue;
    unsigned sm = (unsigned)moved(h, SM + (int)k, p->sm, 2 + 0.2 * (double)p->sm, 0);
    Sample s = {p->pid, at, sm, 0, 0, 0};
    to[k++] = s;
  }
  LEAVE(OK);
}

/* ---- accounting ---------------------------------------------------------------------------- */

typedef struct {
  unsigned util, memutil;
  unsigned long long max_memory, time, start;
  unsigned running, reserved[5];
} Accounting;

static int accounting_on(const Handle *h) {
  return h->mig < 0 && !unit(h)->mig_mode && unit(h)->accounting == 1;
}
int nvmlDeviceGetAccountingMode(Handle *h, unsigned *to) {
  BEGIN(h);
  if (h->mig >= 0 || unit(h)->accounting == NA) LEAVE(NOT_SUPPORTED);
  *to = (unsigned)accounting_on(h);
  LEAVE(OK);
}
int nvmlDeviceGetAccountingBufferSize(Handle *h, unsigned *to) { BEGIN(h); *to = 4000; LEAVE(OK); }
int nvmlDeviceGetAccountingPids(Handle *h, unsigned *n, unsigned *to) {
  BEGIN(h);
  unsigned k = 0, room = to ? *n : 0;
  if (!accounting_on(h)) LEAVE(NOT_SUPPORTED);
  for (int i = world.first[h->gpu]; i >= 0; i = world.procs[i].next)
    if (world.procs[i].peak != NA) {
      if (k < room) to[k] = world.procs[i].pid;
      k++;
    }
  *n = k;
  LEAVE(k > room ? TOO_SMALL : OK);
}
int nvmlDeviceGetAccountingStats(Handle *h, unsigned pid, Accounting *to) {
  BEGIN(h);
  if (!accounting_on(h)) LEAVE(NOT_SUPPORTED);
  for (int i = world.first[h->gpu]; i >= 0; i = world.procs[i].next) {
    const Proc *p = &world.procs[i];
    if (p->pid != pid || p->peak == NA) continue;
    memset(to, 0, sizeof *to);
    to->max_memory = p->peak;
    to->start = p->began;
    to->time = p->lasted;
    to->running = *p->type != '-';
    LEAVE(OK);
  }
  LEAVE(NOT_FOUND);
}

/* ---- limits of control groups --------------------------------------------------------------- */

typedef struct { const char *group; uint64_t soft, hard, used; } GroupLimits;

int nvmlDeviceGetMemoryLimits_v1(Handle *h, GroupLimits *to) {
  BEGIN(h);
  if (h->mig >= 0 || !world.nlimits) LEAVE(NOT_SUPPORTED);
  if (!to || !to->group) LEAVE(INVALID);
  to->soft = 0; to->hard = NA; to->used = 0;
  for (int i = world.first[h->gpu]; i >= 0; i = world.procs[i].next)
    if (on(&world.procs[i], h) && memory_of(&world.procs[i]) != NA) to->used += memory_of(&world.procs[i]);
  for (int i = 0; i < world.nlimits; i++) {
    const Limit *l = &world.limits[i];
    if (l->gpu != h->gpu || fnmatch(l->group, to->group, 0) != 0) continue;
    to->soft = l->soft; to->hard = l->hard;
    if (l->used != NA) to->used = l->used;
  }
  LEAVE(OK);
}

/* ---- the system ---------------------------------------------------------------------------- */

static int init(const char *func, unsigned flags) {
  int code = enter(func, NULL, 0);
  if (code != OK) return code;
  if (world.init_error) LEAVE(world.init_error);
  for (int i = 0; i < MAX_GPUS; i++) {
    card[i] = (Handle){i, -1};
    for (int j = 0; j < MAX_MIGS; j++) slice[i][j] = (Handle){i, j};
  }
  initialised++;
  if (!(flags & 2)) count("init_attaching");
  LEAVE(OK);
}

int nvmlInitWithFlags(unsigned flags) { return init(__func__, flags); }
int nvmlInit_v2(void) { return init(__func__, 0); }
int nvmlShutdown(void) {
  BEGIN_SYSTEM(1);
  if (waiting && initialised == 1) count("shutdown_in_wait");
  if (--initialised == 0) memset(registered, 0, sizeof registered);
  LEAVE(OK);
}

const char *nvmlErrorString(int code) {
  static const char *names[] = {"Success", "Uninitialized", "Invalid Argument", "Not Supported",
    "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
    "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
    "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
    "GPU requires reset", "GPU access blocked by the operating system",
    "Driver/library version mismatch", "In use by another client"};
  return code >= 0 && code < (int)(sizeof names / sizeof *names) ? names[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *to, unsigned room) { BEGIN_SYSTEM(1); LEAVE(text_out(to, room, world.driver)); }
int nvmlSystemGetNVMLVersion(char *to, unsigned room) { BEGIN_SYSTEM(0); LEAVE(text_out(to, room, world.nvml)); }
int nvmlSystemGetCudaDriverVersion(int *to) { BEGIN_SYSTEM(1); *to = world.cuda; LEAVE(OK); }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { BEGIN_SYSTEM(1); *to = world.cuda; LEAVE(OK); }
int nvmlDeviceGetCount_v2(unsigned *to) { BEGIN_SYSTEM(1); *to = (unsigned)world.gpus; LEAVE(OK); }
int nvmlDeviceGetCount(unsigned *to) { BEGIN_SYSTEM(1); *to = (unsigned)world.gpus; LEAVE(OK); }

static int by_index(const char *func, unsigned index, Handle **to) {
  if (index >= MAX_GPUS) return INVALID;
  int code = enter(func, &card[index], 1);
  if (code != OK) return code;
  *to = &card[index];
  LEAVE(OK);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **to) { return by_index(__func__, index, to); }
int nvmlDeviceGetHandleByIndex(unsigned index, Handle **to) { return by_index(__func__, index, to); }

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **to) {
  BEGIN_SYSTEM(1);
  Handle *found = NULL;
  for (int i = 0; i < world.gpus; i++) {
    if (world.gpu[i].present && strcmp(world.gpu[i].uuid, uuid) == 0) found = &card[i];
    for (int j = 0; j < world.migs[i]; j++)
      if (strcmp(world.mig[i][j].uuid, uuid) == 0) found = &slice[i][j];
  }
  if (!found) LEAVE(NOT_FOUND);
  char gpu[16];
  snprintf(gpu, sizeof gpu, "%d", found->gpu);
  int code = (int)rule_for(world.fails, world.nfails, __func__, gpu, OK);
  if (code == OK) *to = found;
  LEAVE(code);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Handle **to) {
  BEGIN_SYSTEM(1);
  for (int i = 0; i < world.gpus; i++)
    if (world.gpu[i].present && strcasecmp(world.gpu[i].bus, bus) == 0) { *to = &card[i]; LEAVE(OK); }
  LEAVE(NOT_FOUND);
}
int nvmlDeviceGetHandleByPciBusId(const char *bus, Handle **to) { return nvmlDeviceGetHandleByPciBusId_v2(bus, to); }

/* ---- identity ------------------------------------------------------------------------------ */

int nvmlDeviceGetName(Handle *h, char *to, unsigned room) { BEGIN(h); LEAVE(text_out(to, room, unit(h)->name)); }
int nvmlDeviceGetUUID(Handle *h, char *to, unsigned room) { BEGIN(h); LEAVE(text_out(to, room, unit(h)->uuid)); }
int nvmlDeviceGetSerial(Handle *h, char *to, unsigned room) {
  BEGIN(h);
  LEAVE(*unit(h)->serial ? text_out(to, room, unit(h)->serial) : NOT_SUPPORTED);
}
int nvmlDeviceGetIndex(Handle *h, unsigned *to) { BEGIN(h); *to = (unsigned)(h->mig < 0 ? h->gpu : h->mig); LEAVE(OK); }
int nvmlDeviceGetMinorNumber(Handle *h, unsigned *to) { BEGIN(h); *to = (unsigned)unit(h)->minor; LEAVE(OK); }
int nvmlDeviceGetBrand(Handle *h, unsigned *to) { BEGIN(h); *to = 14; LEAVE(OK); }
int nvmlDeviceGetCudaComputeCapability(Handle *h, int *major, int *minor) {
  BEGIN(h);
  if (unit(h)->cc == NA) LEAVE(NOT_SUPPORTED);
  *major = (int)(unit(h)->cc / 10);
  *minor = (int)(unit(h)->cc % 10);
  LEAVE(OK);
}

typedef struct {
  char legacy[16];
  unsigned domain, bus, device, pci_id, subsystem_id;
  char id[32];
} Pci;
int nvmlDeviceGetPciInfo_v3(Handle *h, Pci *to) {
  BEGIN(h);
  const char *id = unit(h)->bus;
  memset(to, 0, sizeof *to);
  snprintf(to->id, sizeof to->id, "%s", id);
  snprintf(to->legacy, sizeof to->legacy, "%.15s", strlen(id) > 12 ? id + strlen(id) - 12 : id);
  sscanf(id, "%x:%x:%x", &to->domain, &to->bus, &to->device);
  to->pci_id = 0x20B010DE;
  LEAVE(OK);
}
int nvmlDeviceGetPciInfo_v2(Handle *h, Pci *to) { return nvmlDeviceGetPciInfo_v3(h, to); }
int nvmlDeviceGetPciInfo(Handle *h, Pci *to) { return nvmlDeviceGetPciInfo_v3(h, to); }

/* ---- MIG ----------------------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(Handle *h, unsigned *current, unsigned *pending) {
  BEGIN(h);
  if (h->mig >= 0) LEAVE(NOT_SUPPORTED);
  *current = *pending = (unsigned)unit(h)->mig_mode;
  LEAVE(OK);
}
int nvmlDeviceGetMaxMigDeviceCount(Handle *h, unsigned *to) {
  BEGIN(h);
  *to = h->mig < 0 && unit(h)->mig_mode ? MAX_MIGS - 1 : 0;
  LEAVE(OK);
}
int nvmlDeviceGetMigDeviceHandleByIndex(Handle *h, unsigned index, Handle **to) {
  BEGIN(h);
  if (h->mig >= 0 || !unit(h)->mig_mode || (int)index >= world.migs[h->gpu]) LEAVE(NOT_FOUND);
  *to = &slice[h->gpu][index];
  LEAVE(OK);
}
int nvmlDeviceIsMigDeviceHandle(Handle *h, unsigned *to) { BEGIN(h); *to = h->mig >= 0; LEAVE(OK); }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle *h, Handle **to) {
  BEGIN(h);
  if (h->mig < 0) LEAVE(NOT_SUPPORTED);
  *to = &card[h->gpu];
  LEAVE(OK);
}
int nvmlDeviceGetGpuInstanceId(Handle *h, unsigned *to) { BEGIN(h); if (h->mig < 0) LEAVE(NOT_SUPPORTED); *to = (unsigned)unit(h)->gi; LEAVE(OK); }
int nvmlDeviceGetComputeInstanceId(Handle *h, unsigned *to) { BEGIN(h); if (h->mig < 0) LEAVE(NOT_SUPPORTED); *to = (unsigned)unit(h)->ci; LEAVE(OK); }

/* ---- gauges -------------------------------------------------------------------------------- */

typedef struct { unsigned gpu, memory; } Utilisation;
int nvmlDeviceGetUtilizationRates(Handle *h, Utilisation *to) {
  BEGIN(h);
  if (h->mig >= 0 || unit(h)->mig_mode || unit(h)->util == NA) LEAVE(NOT_SUPPORTED);
  /* From second to second half of the readings move by 4 points or more, a tenth by 9 (H100s that
   * train). */
  to->gpu = (unsigned)moved(h, UTIL, unit(h)->util, 7, 0);
  to->memory = unit(h)->memutil == NA ? 0 : (unsigned)moved(h, MEM_UTIL, unit(h)->memutil, 4, 0);
  LEAVE(OK);
}

#define GAUGE(NAME, VALUE) int NAME(Handle *h, unsigned *to) { BEGIN(h); LEAVE(number_out(to, VALUE)); }
#define WATTS(V) ((V) == NA ? NA : (V) * 1000)
#define DRAWN(H) moved(H, POWER, WATTS(unit(H)->power), 0.06 * WATTS(unit(H)->power), 0)
int nvmlDeviceGetTemperature(Handle *h, int sensor, unsigned *to) { (void)sensor; BEGIN(h); LEAVE(number_out(to, moved(h, TEMP, unit(h)->temp, 0.6, 3))); }
typedef struct { unsigned version; int sensor, value; } Temperature;
int nvmlDeviceGetTemperatureV(Handle *h, Temperature *to) {
  BEGIN(h);
  if (unit(h)->temp == NA) LEAVE(NOT_SUPPORTED);
  to->value = (int)moved(h, TEMP, unit(h)->temp, 0.6, 3);
  LEAVE(OK);
}
GAUGE(nvmlDeviceGetPowerUsage, DRAWN(h))
GAUGE(nvmlDeviceGetEnforcedPowerLimit, WATTS(unit(h)->limit))
GAUGE(nvmlDeviceGetPowerManagementLimit, WATTS(unit(h)->limit))
GAUGE(nvmlDeviceGetPowerManagementDefaultLimit, WATTS(unit(h)->limit))
GAUGE(nvmlDeviceGetFanSpeed, unit(h)->fan)
GAUGE(nvmlDeviceGetPersistenceMode, unit(h)->persistence)
GAUGE(nvmlDeviceGetDisplayMode, 0)
GAUGE(nvmlDeviceGetDisplayActive, 0)
GAUGE(nvmlDeviceGetComputeMode, 0)
GAUGE(nvmlDeviceGetPerformanceState, unit(h)->util ? 0 : 8)
static int clock_of(const Unit *u, int type, unsigned *to) { return number_out(to, type == 2 ? u->memclock : u->clock); }
int nvmlDeviceGetClockInfo(Handle *h, int type, unsigned *to) {
  BEGIN(h);
  int code = clock_of(unit(h), type, to);
  if (code == OK && type != 2) *to = (unsigned)moved(h, CLOCK, *to, 15, 0) / 15 * 15;
  LEAVE(code);
}
int nvmlDeviceGetMaxClockInfo(Handle *h, int type, unsigned *to) { BEGIN(h); LEAVE(clock_of(unit(h), type, to)); }
int nvmlDeviceGetEncoderUtilization(Handle *h, unsigned *to, unsigned *period) { BEGIN(h); *to = 0; *period = 100000; LEAVE(OK); }
int nvmlDeviceGetDecoderUtilization(Handle *h, unsigned *to, unsigned *period) { BEGIN(h); *to = 0; *period = 100000; LEAVE(OK); }
int nvmlDeviceGetPcieThroughput(Handle *h, int counter, unsigned *to) { (void)counter; BEGIN(h); *to = 0; LEAVE(OK); }
int nvmlDeviceGetTotalEccErrors(Handle *h, int type, int counter, unsigned long long *to) {
  (void)counter;
  BEGIN(h);
  uint64_t value = type == 1 ? unit(h)->ecc_errors : unit(h)->ecc_corrected;
  if (unit(h)->ecc == NA && value == NA) LEAVE(NOT_SUPPORTED);
  *to = value == NA ? 0 : value;
  LEAVE(OK);
}
int nvmlDeviceGetMemoryErrorCounter(Handle *h, int type, int counter, int place, unsigned long long *to) {
  (void)place;
  return nvmlDeviceGetTotalEccErrors(h, type, counter, to);
}
/* All retired pages have one cause here: double bit errors. */
int nvmlDeviceGetRetiredPages(Handle *h, int cause, unsigned *n, unsigned long long *to) {
  BEGIN(h);
  if (unit(h)->retired == NA) LEAVE(NOT_SUPPORTED);
  unsigned found = cause == 1 ? (unsigned)unit(h)->retired : 0, room = to ? *n : 0;
  *n = found;
  if (found > room) LEAVE(TOO_SMALL);
  for (unsigned i = 0; i < found; i++) to[i] = 0x1000ULL * (i + 1);
  LEAVE(OK);
}
int nvmlDeviceGetRemappedRows(Handle *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  BEGIN(h);
  if (unit(h)->remapped == NA) LEAVE(NOT_SUPPORTED);
  *corrected = 0;
  *uncorrected = (unsigned)unit(h)->remapped;
  *pending = (unsigned)unit(h)->remap_pending;
  *failed = (unsigned)unit(h)->remap_failure;
  LEAVE(OK);
}
GAUGE(nvmlDeviceGetNumaNodeId, unit(h)->numa)
typedef struct { unsigned version, value; } Addressing;
int nvmlDeviceGetAddressingMode(Handle *h, Addressing *to) { BEGIN(h); LEAVE(number_out(&to->value, unit(h)->addressing)); }
int nvmlDeviceGetEccMode(Handle *h, unsigned *current, unsigned *pending) {
  BEGIN(h);
  if (unit(h)->ecc == NA) LEAVE(NOT_SUPPORTED);
  *current = *pending = unit(h)->ecc != 0;
  LEAVE(OK);
}
int nvmlDeviceGetTotalEnergyConsumption(Handle *h, unsigned long long *to) { BEGIN(h); *to = unit(h)->energy; LEAVE(OK); }
int nvmlDeviceGetCurrentClocksEventReasons(Handle *h, unsigned long long *to) { BEGIN(h); *to = unit(h)->reasons; LEAVE(OK); }
int nvmlDeviceGetCurrentClocksThrottleReasons(Handle *h, unsigned long long *to) { BEGIN(h); *to = unit(h)->reasons; LEAVE(OK); }

int nvmlDeviceGetDriverModel(Handle *h, unsigned *current, unsigned *pending) { (void)current; (void)pending; BEGIN(h); LEAVE(NOT_SUPPORTED); }
int nvmlDeviceGetFieldValues(Handle *h, int n, void *to) { (void)n; (void)to; BEGIN(h); LEAVE(NOT_SUPPORTED); }
int nvmlDeviceGetDriverModel_v2(Handle *h, unsigned *current, unsigned *pending) { (void)current; (void)pending; BEGIN(h); LEAVE(NOT_SUPPORTED); }

/* ---- events -------------------------------------------------------------------------------- */

typedef struct { Handle *device; unsigned long long type, data; unsigned gi, ci; } EventData;
static int event_set;
int nvmlEventSetCreate(void **to) { BEGIN_SYSTEM(1); *to = &event_set; LEAVE(OK); }
int nvmlEventSetFree(void *set) {
  (void)set;
  BEGIN_SYSTEM(1);
  if (waiting) count("shutdown_in_wait");
  memset(registered, 0, sizeof registered);
  LEAVE(OK);
}
static uint64_t supported(const Unit *u) { return u->events != NA ? u->events : u->ecc != NA ? 8 | 3 : 8; }
int nvmlDeviceRegisterEvents(Handle *h, unsigned long long types, void *set) {
  (void)set;
  BEGIN(h);
  if (h->mig >= 0 || (types & ~supported(unit(h)))) LEAVE(NOT_SUPPORTED);
  registered[h->gpu] |= types;
  LEAVE(OK);
}
int nvmlDeviceGetSupportedEventTypes(Handle *h, unsigned long long *to) {
  BEGIN(h);
  if (h->mig >= 0) LEAVE(NOT_SUPPORTED);
  *to = supported(unit(h));
  LEAVE(OK);
}

/* Equal lines are equal events: as many are handed out as stand in the file. */
static int not_handed(int which) { /* under the lock */
  const Event *e = &world.events[which];
  int nth = 1, i = 0;
  for (int j = 0; j < which; j++) nth += strcmp(world.events[j].line, e->line) == 0;
  while (i < nhanded && strcmp(handed[i].line, e->line) != 0) i++;
  if (i == nhanded) {
    if (nhanded == MAX_EVENTS * 4) return 0;
    snprintf(handed[nhanded++].line, TEXT, "%s", e->line);
  }
  if (handed[i].times >= nth) return 0;
  handed[i].times = nth;
  return 1;
}

static int waited_for(const char *func, EventData *to, unsigned timeout_ms) {
  for (unsigned waited = 0, look_ms = 20;; waited += look_ms) {
    int code = enter_again(func, NULL, 1, waited == 0);
    if (code != OK) return code;
    for (int i = 0; i < world.nevents; i++) {
      const Event *e = &world.events[i];
      if (!(registered[e->gpu] & e->type) || !not_handed(i)) continue;
      *to = (EventData){&card[e->gpu], e->type, e->data, e->gi, e->ci};
      LEAVE(OK);
    }
    if (waited >= timeout_ms) LEAVE(TIMEOUT);
    look_ms = (unsigned)world.event_look_ms;
    pthread_mutex_unlock(&lock);
    if (look_ms > timeout_ms - waited) look_ms = timeout_ms - waited;
    struct timespec t = {look_ms / 1000, look_ms % 1000 * 1000 * 1000};
    nanosleep(&t, NULL);
  }
}
static int event_wait(const char *func, EventData *to, unsigned timeout_ms) {
  __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
  int code = waited_for(func, to, timeout_ms);
  __atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
  return code;
}
int nvmlEventSetWait_v2(void *set, EventData *to, unsigned timeout_ms) { (void)set; return event_wait(__func__, to, timeout_ms); }
int nvmlEventSetWait(void *set, EventData *to, unsigned timeout_ms) { (void)set; return event_wait(__func__, to, timeout_ms); }
