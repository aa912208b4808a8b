package e2e

// otherEnv makes the test binary run as a program that is not part of Millrace and allocates memory
// of the first GPU: the given number of bytes, or all but that number if it is negative.
const otherEnv = "MILLRACE_TEST_TAKE_GPU_MEMORY"
