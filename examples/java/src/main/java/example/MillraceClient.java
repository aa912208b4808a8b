package example;

import com.google.gson.Gson;
import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.rpc.ErrorInfo;
import dev.millrace.v1.*;
import dev.millrace.v1.SchedulerServiceGrpc.SchedulerServiceBlockingV2Stub;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/** A lease of a client, and an open Watch that keeps it. */
final class MillraceClient {
  /** The address and the token of a cluster. */
  record Cluster(String address, String token) {}

  /** A value, and the frames to which its tensors refer if they are not inline. */
  record Result(Value value, List<byte[]> frames) {}

  private final Cluster cluster;
  private final ManagedChannel channel;
  private final SchedulerServiceBlockingV2Stub scheduler;
  private final long clientId;
  private final TaskWatch watch;

  /** Opens a lease. */
  MillraceClient(String name, Cluster cluster) throws Exception {
    this.cluster = cluster;
    channel = connect(cluster.address());
    scheduler = SchedulerServiceGrpc.newBlockingV2Stub(channel);
    var request = OpenClientRequest.newBuilder().setName(name).setApiVersion("v1.0");
    var opened = scheduler().openClient(request.build());
    clientId = opened.getClient().getClientId();
    watch = new TaskWatch(scheduler, clientId, opened.getCluster().getLife());
  }

  /** Returns the cluster that the environment names. */
  static Cluster findCluster() throws IOException {
    String address = System.getenv().getOrDefault("MILLRACE_ADDRESS", "");
    if (!address.isEmpty()) {
      return new Cluster(address, System.getenv("MILLRACE_TOKEN"));
    }
    String file = System.getenv().getOrDefault("MILLRACE_SCHEDULER_FILE", "");
    if (!file.isEmpty()) {
      return new Gson().fromJson(Files.readString(Path.of(file)), Cluster.class);
    }
    throw new IOException("set MILLRACE_ADDRESS and MILLRACE_TOKEN, or MILLRACE_SCHEDULER_FILE");
  }

  /**
   * Returns the reason and the metadata of a call that failed. Both are empty for errors that are
   * not of Millrace, such as a broken connection.
   */
  static ErrorInfo errorInfo(Exception error) throws IOException {
    var status = StatusProto.fromThrowable(error);
    if (status != null) {
      for (Any detail : status.getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          return detail.unpack(ErrorInfo.class);
        }
      }
    }
    return ErrorInfo.getDefaultInstance();
  }

  private ManagedChannel connect(String address) {
    Metadata headers = new Metadata();
    headers.put(
        Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER),
        "Bearer " + cluster.token());
    return ManagedChannelBuilder.forTarget(address)
        .usePlaintext()
        .intercept(MetadataUtils.newAttachHeadersInterceptor(headers))
        .maxInboundMessageSize(64 << 20)
        .keepAliveTime(20, TimeUnit.SECONDS)
        .build();
  }

  /** Returns a stub of the scheduler for one call, which may take a minute. */
  SchedulerServiceBlockingV2Stub scheduler() {
    return scheduler.withDeadlineAfter(1, TimeUnit.MINUTES);
  }

  /** Submits tasks that need neither ops nor options, and returns their ids. */
  List<Long> submit(TaskSpec.Builder... tasks) throws Exception {
    var submission = SubmitRequest.newBuilder();
    for (TaskSpec.Builder task : tasks) {
      submission.addTasks(task);
    }
    return submit(submission);
  }

  /**
   * Submits tasks, and returns their ids. The request id makes it safe to send the same submission
   * again after UNAVAILABLE.
   */
  List<Long> submit(SubmitRequest.Builder submission) throws Exception {
    String requestId = UUID.randomUUID().toString();
    submission.setHeader(
        SubmitHeader.newBuilder().setClientId(clientId).setRequestId(requestId));
    return scheduler().submitBatch(submission.build()).getTaskIdsList();
  }

  /** Waits for the end of a task that this client holds, and returns the last update. */
  TaskUpdate end(long taskId) throws Exception {
    return watch.end(taskId);
  }

  /** Waits for the success of a task that this client holds, and returns the result. */
  Result result(long taskId) throws Exception {
    TaskUpdate update = end(taskId);
    if (update.hasError()) {
      throw new IOException(update.getState() + ": " + update.getError());
    }
    if (update.hasInlineResult()) {
      return new Result(Value.parseFrom(update.getInlineResult()), List.of());
    }
    return read(taskId);
  }

  private Result read(long taskId) throws Exception {
    var located =
        scheduler().locateObjects(LocateObjectsRequest.newBuilder().addTaskIds(taskId).build());
    if (located.getWorkersCount() == 0) {
      throw new IOException("no worker has it: " + located.getObjects(0));
    }
    ManagedChannel data = connect(located.getWorkers(0).getDataAddress());
    try {
      var stream =
          DataServiceGrpc.newBlockingV2Stub(data)
              .withDeadlineAfter(1, TimeUnit.MINUTES)
              .readObjects(
                  ReadObjectsRequest.newBuilder()
                      .addObjects(ObjectRef.newBuilder().setTaskId(taskId))
                      .build());
      Value value = null;
      List<byte[]> frames = List.of();
      while (stream.hasNext()) {
        var message = stream.read();
        if (message.hasError()) {
          throw new IOException("task not read: " + message.getError());
        }
        if (message.hasHead()) {
          value = Value.parseFrom(message.getHead().getHeader());
          frames =
              message.getHead().getFrameBytesList().stream()
                  .map(size -> new byte[Math.toIntExact(size)])
                  .toList();
        }
        // A message with the head may have the first piece, too.
        if (!message.getData().isEmpty()) {
          message.getData().copyTo(frames.get(message.getFrame()), (int) message.getOffset());
        }
      }
      return new Result(value, frames);
    } finally {
      data.shutdownNow();
    }
  }

  /** Stores the object of a task of the kind OP_KIND_DATA on a worker. */
  void write(long taskId, Value value, List<byte[]> frames) throws Exception {
    var active =
        scheduler().listWorkers(
            ListWorkersRequest.newBuilder().addStates(WorkerState.WORKER_STATE_ACTIVE).build());
    if (active.getWorkersCount() == 0) {
      throw new IOException("no worker is active");
    }
    var head =
        ObjectHead.newBuilder()
            .setObject(ObjectRef.newBuilder().setTaskId(taskId))
            .setHeader(value.toByteString());
    frames.forEach(frame -> head.addFrameBytes(frame.length));
    ManagedChannel data = connect(active.getWorkers(0).getDataAddress());
    try {
      var stream =
          DataServiceGrpc.newBlockingV2Stub(data)
              .withDeadlineAfter(1, TimeUnit.MINUTES)
              .writeObject();
      stream.write(WriteObjectRequest.newBuilder().setHead(head).build());
      final int size = 4 << 20;
      for (int frame = 0; frame < frames.size(); frame++) {
        byte[] bytes = frames.get(frame);
        for (int offset = 0; offset < bytes.length; offset += size) {
          var piece = ByteString.copyFrom(bytes, offset, Math.min(size, bytes.length - offset));
          stream.write(
              WriteObjectRequest.newBuilder()
                  .setFrame(frame)
                  .setOffset(offset)
                  .setData(piece)
                  .build());
        }
      }
      stream.halfClose();
      stream.read(); // the object is stored, and the scheduler knows it
    } finally {
      data.shutdownNow();
    }
  }

  void cancel(long taskId, String reason) throws Exception {
    scheduler()
        .cancelTasks(
            CancelTasksRequest.newBuilder()
                .setClientId(clientId)
                .setTasks(TaskSet.newBuilder().addIds(taskId))
                .setReason(reason)
                .build());
  }

  /** Ends the lease, and closes the connection. */
  void close() throws Exception {
    scheduler().closeClient(CloseClientRequest.newBuilder().setClientId(clientId).build());
    channel.shutdownNow();
  }
}
