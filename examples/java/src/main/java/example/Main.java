package example;

import dev.millrace.v1.*;
import io.grpc.StatusException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;

/**
 * An example of a client of Millrace in Java. It computes with arrays, reads and writes their
 * bytes, and shows the errors. MillraceClient has the calls, README.md the commands to run it.
 */
public final class Main {
  /** Begins all keys of this run, so that each run computes anew. */
  private static final String RUN = "example-java-" + UUID.randomUUID() + "/";

  private final MillraceClient client;

  private Main(MillraceClient client) {
    this.client = client;
  }

  // Values of arguments.

  private static Value value(long n) {
    return Value.newBuilder().setIntValue(n).build();
  }

  private static Value value(String s) {
    return Value.newBuilder().setStringValue(s).build();
  }

  private static Value input(int index) {
    return Value.newBuilder().setInput(index).build();
  }

  private static TaskSpec.Builder task(String name, String op, Value... arguments) {
    return TaskSpec.newBuilder()
        .setKey(RUN + name)
        .setOp(op)
        .setArguments(Arguments.newBuilder().addAllPositional(Arrays.asList(arguments)));
  }

  private static void check(boolean condition, String message) {
    if (!condition) {
      throw new IllegalStateException(message);
    }
  }

  /** The elements of a tensor with one axis at most. */
  private record Elements(ByteBuffer bytes, int offset, int stride) {
    static Elements of(MillraceClient.Result result, DType dtype) {
      Tensor tensor = result.value().getTensorValue();
      check(tensor.getDtype() == dtype && tensor.getShapeCount() <= 1, "another tensor: " + tensor);
      ByteBuffer bytes =
          tensor.hasFrame()
              ? ByteBuffer.wrap(result.frames().get(tensor.getFrame()))
              : tensor.getInlineData().asReadOnlyByteBuffer();
      int stride = tensor.getStridesCount() > 0 ? (int) tensor.getStrides(0) : 8;
      return new Elements(
          bytes.order(ByteOrder.LITTLE_ENDIAN), (int) tensor.getOffsetBytes(), stride);
    }

    long int64(int i) {
      return bytes.getLong(offset + i * stride);
    }

    double float64(int i) {
      return bytes.getDouble(offset + i * stride);
    }
  }

  private void computeGraph() throws Exception {
    // One submission. Only results with `hold` are kept; the others are dropped after their use.
    int count = 1_000_000;
    TaskSpec.Builder large = task("large", "array.arange", value(count)).setHold(true);
    large.getArgumentsBuilder().putNamed("dtype", value("float64"));
    List<Long> ids =
        client.submit(
            task("numbers", "array.arange", value(1000)),
            task("squares", "array.map", value("x0 * x0"), input(0)).addInputs(RUN + "numbers"),
            task("total", "array.reduce", input(0), value("sum"))
                .addInputs(RUN + "squares")
                .setHold(true),
            large);

    // A small result arrives with the update of its task, a large one is read from a worker.
    long sum = Elements.of(client.result(ids.get(2)), DType.DTYPE_INT64).int64(0);
    check(sum == 332_833_500, "the sum of the squares is " + sum);
    Elements elements = Elements.of(client.result(ids.get(3)), DType.DTYPE_FLOAT64);
    for (int i = 0; i < count; i++) {
      check(elements.float64(i) == i, "element " + i + " is " + elements.float64(i));
    }
    System.out.printf(
        "sum of squares: %d; all %d elements of the large array are right%n", sum, count);
  }

  private void writeArray() throws Exception {
    // A task without operation stands for the array of this program, so that others can need it.
    int count = 1_000_000;
    ByteBuffer array = ByteBuffer.allocate(8 * count).order(ByteOrder.LITTLE_ENDIAN);
    for (int i = 0; i < count; i++) {
      array.putDouble(i / 2.0);
    }
    List<Long> ids =
        client.submit(
            SubmitRequest.newBuilder()
                .addOps(Op.newBuilder().setKind(OpKind.OP_KIND_DATA))
                .addTasks(TaskSpec.newBuilder().setKey(RUN + "array").setOpIndex(0).setHold(true))
                .addTasks(
                    task("mean", "array.reduce", input(0), value("mean"))
                        .addInputs(RUN + "array")
                        .setHold(true)));
    Tensor tensor =
        Tensor.newBuilder().setDtype(DType.DTYPE_FLOAT64).addShape(count).setFrame(0).build();
    client.write(
        ids.get(0), Value.newBuilder().setTensorValue(tensor).build(), List.of(array.array()));
    double mean = Elements.of(client.result(ids.get(1)), DType.DTYPE_FLOAT64).float64(0);
    check(mean == 249_999.75, "the mean of the written array is " + mean);
    System.out.println("mean of the written array: " + mean);
  }

  private void showErrors() throws Exception {
    // A task that fails: its update has the error.
    var failing = task("fail", "bench.fail", value("no luck")).setHold(true);
    var error = client.end(client.submit(failing).get(0)).getError();
    check(error.getReason().equals("OP_FAILED"), "the task did not fail as it should: " + error);
    System.out.printf("a task failed: %s: %s%n", error.getReason(), error.getMessage());

    // A call that fails: programs decide by the reason.
    try {
      client.submit(task("bad", "array.nope"));
      check(false, "the unknown operation was not refused");
    } catch (StatusException e) {
      var info = MillraceClient.errorInfo(e);
      check(info.getReason().equals("UNKNOWN_OP"), "another error: " + e);
      System.out.printf(
          "a call failed: %s: %s: %s%n",
          info.getReason(), info.getMetadataMap().get("object"), e.getStatus().getDescription());
    }

    // A task that cannot run, because no worker has the resource that it needs.
    var submission =
        SubmitRequest.newBuilder()
            .addOptions(TaskOptions.newBuilder().putResources("telescope", 1))
            .addTasks(task("stuck", "bench.noop").setOptionsIndex(1).setHold(true));
    long stuck = client.submit(submission).get(0);
    var question = ExplainTaskRequest.newBuilder().setTask(TaskRef.newBuilder().setId(stuck));
    var answer = client.scheduler().explainTask(question.build());
    check(answer.getStatus() == TaskStatus.TASK_STATUS_NO_WORKER_FITS, "not stuck: " + answer);
    System.out.println("a task cannot run: " + answer.getExplanation());
    client.cancel(stuck, "nobody has a telescope");
    TaskState state = client.end(stuck).getState();
    check(state == TaskState.TASK_STATE_CANCELLED, "the cancelled task is " + state);
  }

  public static void main(String[] arguments) throws Exception {
    try {
      MillraceClient client = new MillraceClient("example-java", MillraceClient.findCluster());
      Main main = new Main(client);
      main.computeGraph();
      main.writeArray();
      main.showErrors();
      client.close(); // the results of a program that ends without it are kept for 30 s
      System.out.println("ok");
    } catch (Exception e) {
      String reason = MillraceClient.errorInfo(e).getReason();
      String cause = e.getCause() == null ? "" : ": " + e.getCause().getMessage();
      System.err.println("error: " + reason + " " + e.getMessage() + cause);
      System.exit(1);
    }
  }
}
