// SPDX-License-Identifier: Apache-2.0
// Stands for nvidia-cuda-mps-control where it passes a command from its input to the daemon, which fake_mps_daemon.py
// plays. In C, as each question to a daemon starts it: Python would need a hundred times as long.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(void) {
    // Read first: the daemon serves one client at a time, and one that has sent nothing yet would block the others.
    char text[4096];
    if (!fgets(text, sizeof text, stdin)) text[0] = 0;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", getenv("CUDA_MPS_PIPE_DIRECTORY"));
    int connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (length >= (int)sizeof address.sun_path || connect(connection, (struct sockaddr *)&address, sizeof address)) {
        puts("Cannot find MPS control daemon process");
        return 1;
    }
    if (write(connection, text, strlen(text)) < 0) return 1;
    ssize_t count;
    while ((count = read(connection, text, sizeof text)) > 0) fwrite(text, 1, (size_t)count, stdout);
    return 0;
}
