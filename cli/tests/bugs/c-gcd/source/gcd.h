/* The greatest common divisor of two numbers that are 0 or more. */
int gcd(int a, int b);
