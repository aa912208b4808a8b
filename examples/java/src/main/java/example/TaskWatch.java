package example;

import dev.millrace.v1.*;
import dev.millrace.v1.SchedulerServiceGrpc.SchedulerServiceBlockingV2Stub;
import io.grpc.Status;
import io.grpc.StatusException;
import java.io.IOException;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;

/** An open Watch. It follows the tasks that a client holds, and keeps the client's lease. */
final class TaskWatch {
  private static final EnumSet<TaskState> ENDED =
      EnumSet.of(
          TaskState.TASK_STATE_SUCCEEDED,
          TaskState.TASK_STATE_FAILED,
          TaskState.TASK_STATE_CANCELLED);

  private final Map<Long, TaskUpdate> updates = new HashMap<>(); // by task id: its last update
  private long revision;
  private long lost; // time at which the connection broke; 0: it has not
  private Exception failure;

  TaskWatch(SchedulerServiceBlockingV2Stub scheduler, long clientId, long life) {
    var request = WatchRequest.newBuilder().setClientId(clientId).setLife(life);
    Thread thread = new Thread(() -> run(scheduler, request), "watch");
    thread.setDaemon(true);
    thread.start();
  }

  /** Opens the stream again after a broken connection, until the lease must have ended. */
  private void run(SchedulerServiceBlockingV2Stub scheduler, WatchRequest.Builder request) {
    try {
      while (true) {
        try {
          var stream = scheduler.watch(request.setAfterRevision(revision).build());
          while (stream.hasNext()) {
            receive(stream.read());
          }
          throw new IOException("the cluster shuts down");
        } catch (StatusException e) {
          long now = System.nanoTime();
          lost = lost == 0 ? now : lost;
          if (e.getStatus().getCode() != Status.Code.UNAVAILABLE || now - lost > 30_000_000_000L) {
            throw e;
          }
        }
        Thread.sleep(100);
      }
    } catch (Exception e) {
      fail(e);
    }
  }

  private synchronized void receive(WatchResponse message) {
    lost = 0;
    revision = message.getRevision() == 0 ? revision : message.getRevision();
    for (TaskUpdate update : message.getTasksList()) {
      updates.put(update.getTaskId(), update);
    }
    notifyAll();
  }

  private synchronized void fail(Exception e) {
    failure = e;
    notifyAll();
  }

  /** Waits for the end of a task that the client holds, and returns the last update. */
  synchronized TaskUpdate end(long taskId) throws Exception {
    while (true) {
      TaskUpdate update = updates.get(taskId);
      if (update != null && ENDED.contains(update.getState())) {
        return update;
      }
      if (failure != null) {
        throw failure;
      }
      wait();
    }
  }
}
