#include <stdio.h>
#include <unistd.h>

#include "gcd.h"

static int failed;

static void expect(const char *what, int got, int wanted) {
    if (got != wanted) {
        printf("%s: %d and not %d\n", what, got, wanted);
        failed = 1;
    }
}

int main(void) {
    alarm(5);
    expect("usual", gcd(12, 18), 6);
    expect("zero", gcd(0, 4), 4);
    return failed;
}
