package e2e

// otherEnv makes the test's program one that has nothing to do with Millrace and takes memory of the first GPU: so many
// bytes, or leaves so many if the number is negative.
const otherEnv = "MILLRACE_TEST_TAKE_GPU_MEMORY"
