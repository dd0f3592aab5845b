// What a TCP connection over loopback can do at best: two processes send each other a message at the same time, with one send and
// non-blocking receives in a loop, and look at nothing else.
//
//   tcp_exchange BYTES CONGESTION MODE BLOCKS ITERATIONS
//
// CONGESTION: the name of a congestion control, or "-" for the system's. MODE: "spin" (receives that do not block) or "sleep" (that do);
// with "sendmsg" appended, a header of 120 bytes and the rest as two pieces. Prints the microseconds per exchange of every block.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kHeader = 120 };

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

// One end of a fresh connection with a forked child; `*child` is 0 in the child.
static int connect_pair(pid_t *child) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (struct sockaddr *)&address, bytes) || listen(listener, 1) ||
      getsockname(listener, (struct sockaddr *)&address, &bytes))
    fail("listen");
  *child = fork();
  if (*child < 0) fail("fork");
  if (*child != 0) return accept(listener, NULL, NULL);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, (struct sockaddr *)&address, bytes)) fail("connect");
  return fd;
}

static ssize_t send_rest(int fd, char *out, size_t from, size_t bytes, int pieces) {
  if (!pieces || from >= kHeader) return send(fd, out + from, bytes - from, MSG_NOSIGNAL | MSG_DONTWAIT);
  struct iovec vectors[2] = {{out + from, kHeader - from}, {out + kHeader, bytes - kHeader}};
  struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void exchange(int fd, char *out, char *in, size_t bytes, int pieces, int sleeps) {
  size_t sent = 0, got = 0;
  while (sent < bytes || got < bytes) {
    if (sent < bytes) {
      const ssize_t n = send_rest(fd, out, sent, bytes, pieces);
      if (n < 0 && errno != EAGAIN) fail("send");
      if (n > 0) sent += (size_t)n;
    }
    if (got < bytes) {
      const ssize_t n = recv(fd, in + got, bytes - got, sleeps && sent == bytes ? 0 : MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) fail("recv");
      if (n > 0) got += (size_t)n;
    }
  }
}

int main(int argc, char **argv) {
  if (argc != 6) return fprintf(stderr, "usage: %s BYTES CONGESTION MODE BLOCKS ITERATIONS\n", argv[0]), 2;
  const size_t bytes = strtoul(argv[1], NULL, 10) + kHeader;
  const int sleeps = strstr(argv[3], "sleep") != NULL, pieces = strstr(argv[3], "sendmsg") != NULL;
  const int blocks = atoi(argv[4]), iterations = atoi(argv[5]);
  pid_t child;
  const int fd = connect_pair(&child);
  const int one = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) fail("TCP_NODELAY");
  if (strcmp(argv[2], "-") && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, argv[2], (socklen_t)strlen(argv[2])))
    fail("TCP_CONGESTION");
  char *out = malloc(bytes), *in = malloc(bytes);
  memset(out, 1, bytes);  // so that there is memory behind it
  memset(in, 2, bytes);
  for (int block = -1; block < blocks; ++block) {  // the first warms up
    const double began = now_us();
    for (int i = 0; i < iterations; ++i) exchange(fd, out, in, bytes, pieces, sleeps);
    if (child != 0 && block >= 0) printf("%.3f\n", (now_us() - began) / iterations);
  }
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return status != 0;
}
