/* The value, or the bound that it is beyond. */
int clamp(int value, int low, int high);
