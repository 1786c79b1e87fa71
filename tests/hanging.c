/* Preloaded into a process, this makes every use of files below $HANG_BELOW hang once the file $HANG_IF exists, as a
   file system does whose server is gone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void hang_if_below(const char *path) {
  const char *below = getenv("HANG_BELOW"), *trigger = getenv("HANG_IF");
  if (path && below && trigger && strncmp(path, below, strlen(below)) == 0 && access(trigger, F_OK) == 0)
    for (;;) pause();
}

static void hang_if_of(int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0) {
    path[length] = 0;
    hang_if_below(path);
  }
}

#define ORIGINAL(type, name, ...) type (*original)(__VA_ARGS__) = dlsym(RTLD_NEXT, name)

static int opened(const char *name, const char *path, int flags, mode_t mode) {
  hang_if_below(path);
  ORIGINAL(int, name, const char *, int, ...);
  return original(path, flags, mode);
}

int open(const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  mode_t mode = va_arg(list, mode_t);
  va_end(list);
  return opened("open", path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  mode_t mode = va_arg(list, mode_t);
  va_end(list);
  return opened("open64", path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
  hang_if_below(path);
  ORIGINAL(FILE *, "fopen", const char *, const char *);
  return original(path, mode);
}

FILE *fopen64(const char *path, const char *mode) {
  hang_if_below(path);
  ORIGINAL(FILE *, "fopen64", const char *, const char *);
  return original(path, mode);
}

int statvfs(const char *path, struct statvfs *result) {
  hang_if_below(path);
  ORIGINAL(int, "statvfs", const char *, struct statvfs *);
  return original(path, result);
}

int statvfs64(const char *path, struct statvfs64 *result) {
  hang_if_below(path);
  ORIGINAL(int, "statvfs64", const char *, struct statvfs64 *);
  return original(path, result);
}

int fsync(int descriptor) {
  hang_if_of(descriptor);
  ORIGINAL(int, "fsync", int);
  return original(descriptor);
}
