import static java.nio.charset.StandardCharsets.UTF_8;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.Descriptors.ServiceDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.util.JsonFormat;
import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.reflection.v1.ServerReflectionGrpc;
import io.grpc.reflection.v1.ServerReflectionRequest;
import io.grpc.reflection.v1.ServerReflectionResponse;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Tasks of waterclock from Java, over HTTP or gRPC: one that calls a URL, one whose executor reports, and one that is cancelled. And such
 * an executor: it goes on where an earlier turn came to.
 */
public class Tasks {
    static final String USAGE = """
        Tasks of waterclock from Java.

          java -cp 'lib/*' Tasks.java http TOPIC        works on the tasks for TOPIC, until it is stopped
          java -cp 'lib/*' Tasks.java http TOPIC URL    creates a task that calls URL, and one for TOPIC, whose executor this is;
                                                        cancels a third one
          java -cp 'lib/*' Tasks.java grpc TOPIC [URL]  the same over gRPC

        BROKERS and SERVER in the environment say where: localhost:9092, http://localhost:8080. WATERCLOCK_API__TOKEN has the token
        of the API, if there is one.""";

    static final String BROKERS = System.getenv().getOrDefault("BROKERS", "localhost:9092");
    static final URI SERVER = URI.create(System.getenv().getOrDefault("SERVER", "http://localhost:8080"));
    static final String TOKEN = System.getenv("WATERCLOCK_API__TOKEN");
    /** A heartbeat has to come within this time. An executor sends them at a third of it. */
    static final Duration PERIOD = Duration.ofSeconds(6);

    /** The turn is over, so its executor stops. */
    static class Stale extends Exception {}

    /** The same call may have another answer soon, and may be made again. */
    static class Passes extends Exception {
        Passes(String why) {
            super(why);
        }
    }

    /** What both ways have in common. Words are those of HTTP: running, finished, cancelled. */
    interface Api {
        String createHttp(String requestId, String url, Duration delay) throws Exception;

        String createKafka(String requestId, String topic, String value) throws Exception;

        Task get(String id) throws Exception;

        void heartbeat(String id, String ticket, String cursor) throws Exception;

        /** Says finished or failed, and is told what became of the task by that. */
        String report(String id, String ticket, String outcome, String cursor, String error) throws Exception;

        String cancel(String id) throws Exception;
    }

    record Task(String status, int attempts) {
        boolean hasEnded() {
            return List.of("finished", "failed", "cancelled", "expired").contains(status);
        }

        static Task of(JsonObject told, String prefix) {
            var attempts = told.get("attempts_total");
            return new Task(word(told, "task_status", prefix), attempts == null ? 0 : attempts.getAsInt());
        }
    }

    /** TASK_STATUS_RUNNING as HTTP has it. */
    static String word(JsonObject told, String name, String prefix) {
        return told.get(name).getAsString().replaceFirst("^" + prefix, "").toLowerCase();
    }

    /**
     * Calls until there is an answer that waiting does not change. Only for what may be sent twice: all calls here may, the creates because
     * they have a request id.
     */
    static <T> T patient(Callable<T> call) throws Exception {
        long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        for (long wait = 100; ; wait = Math.min(2 * wait, 5000)) {
            try {
                return call.call();
            } catch (Passes passes) {
                if (System.nanoTime() > end) throw passes;
                Thread.sleep(wait);
            }
        }
    }

    /** A text in JSON. */
    static String json(String text) {
        return new JsonPrimitive(text).toString();
    }

    /** Needs nothing beside Java and a library for JSON. */
    static class OverHttp implements Api {
        final HttpClient http = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(2)).build();

        JsonObject call(String method, String path, String body) throws Exception {
            var request = HttpRequest.newBuilder(SERVER.resolve(path)).timeout(Duration.ofSeconds(20))
                .header("content-type", "application/json").method(method, BodyPublishers.ofString(body));
            if (TOKEN != null) request.header("authorization", "Bearer " + TOKEN);
            return patient(() -> {
                try {
                    var answer = http.send(request.build(), BodyHandlers.ofString());
                    var told = JsonParser.parseString(answer.body()).getAsJsonObject();
                    var code = told.has("code") ? told.get("code").getAsString() : "";
                    if (List.of(503, 429).contains(answer.statusCode()) || code.equals("attempt_open")) throw new Passes(code);
                    if (code.equals("stale")) throw new Stale();
                    if (answer.statusCode() >= 300) throw new IllegalStateException(answer.body());
                    return told;
                } catch (IOException nobodyAnswers) {
                    throw new Passes(nobodyAnswers.toString());
                }
            });
        }

        @Override
        public String createHttp(String requestId, String url, Duration delay) throws Exception {
            return call("POST", "/v1/tasks/http", """
                {"project": "shop", "group": "orders", "request_id": "%s", "url": "%s", "delay": %d, "body": "{}",
                 "headers": {"content-type": "application/json"}, "retry": {"count": 3, "interval": 1}}"""
                .formatted(requestId, url, delay.toSeconds())).get("task_id").getAsString();
        }

        @Override
        public String createKafka(String requestId, String topic, String value) throws Exception {
            return call("POST", "/v1/tasks/kafka", """
                {"project": "shop", "group": "imports", "request_id": "%s", "topic": "%s", "value": "%s", "delay": 1,
                 "feedback": {"deadline": "1h", "heartbeat": %d}, "retry": {"count": 3}}"""
                .formatted(requestId, topic, value, PERIOD.toSeconds())).get("task_id").getAsString();
        }

        @Override
        public Task get(String id) throws Exception {
            return Task.of(call("GET", "/v1/tasks/" + id, ""), "");
        }

        @Override
        public void heartbeat(String id, String ticket, String cursor) throws Exception {
            call("POST", "/v1/tasks/" + id + "/heartbeat", """
                {"ticket": "%s", "cursor": "%s"}""".formatted(ticket, cursor));
        }

        @Override
        public String report(String id, String ticket, String outcome, String cursor, String error) throws Exception {
            return call("POST", "/v1/tasks/" + id + "/result", """
                {"ticket": "%s", "outcome": "%s", "cursor": "%s", "error": %s}"""
                .formatted(ticket, outcome, cursor, json(error))).get("outcome").getAsString();
        }

        @Override
        public String cancel(String id) throws Exception {
            return call("DELETE", "/v1/tasks/" + id + "?wait=5s", "").get("outcome").getAsString();
        }
    }

    /**
     * Asks the instance what its messages look like, so this program needs no generated code. Yours may have some: docs/clients/java.md
     * says how.
     */
    static class OverGrpc implements Api, AutoCloseable {
        final ManagedChannel channel =
            ManagedChannelBuilder.forAddress(SERVER.getHost(), SERVER.getPort()).usePlaintext().build();
        final ServiceDescriptor service = describe();

        /** The file of the service, and those that it imports. */
        ServiceDescriptor describe() {
            var told = new CompletableFuture<ServerReflectionResponse>();
            var asking = ServerReflectionGrpc.newStub(channel).serverReflectionInfo(new StreamObserver<>() {
                @Override
                public void onNext(ServerReflectionResponse response) {
                    told.complete(response);
                }

                @Override
                public void onError(Throwable error) {
                    told.completeExceptionally(error);
                }

                @Override
                public void onCompleted() {}
            });
            asking.onNext(ServerReflectionRequest.newBuilder().setFileContainingSymbol("waterclock.v1.Tasks").build());
            try {
                var files = new HashMap<String, FileDescriptorProto>();
                for (var bytes : told.get(10, TimeUnit.SECONDS).getFileDescriptorResponse().getFileDescriptorProtoList()) {
                    var file = FileDescriptorProto.parseFrom(bytes);
                    files.put(file.getName(), file);
                }
                asking.onCompleted();
                return build("waterclock/v1/tasks.proto", files).findServiceByName("Tasks");
            } catch (Exception error) {
                throw new IllegalStateException("no reflection at " + SERVER, error);
            }
        }

        static FileDescriptor build(String name, Map<String, FileDescriptorProto> files) throws Exception {
            var file = files.get(name);
            // What comes with every library of protobuf the instance need not send.
            if (file == null) return com.google.protobuf.DurationProto.getDescriptor();
            var imports = new FileDescriptor[file.getDependencyCount()];
            for (int i = 0; i < imports.length; i++) imports[i] = build(file.getDependency(i), files);
            return FileDescriptor.buildFrom(file, imports);
        }

        JsonObject call(String name, String request) throws Exception {
            var of = service.findMethodByName(name);
            var in = DynamicMessage.newBuilder(of.getInputType());
            JsonFormat.parser().merge(request, in);
            var method = MethodDescriptor.<DynamicMessage, DynamicMessage>newBuilder()
                .setType(MethodDescriptor.MethodType.UNARY).setFullMethodName("waterclock.v1.Tasks/" + name)
                .setRequestMarshaller(ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(of.getInputType())))
                .setResponseMarshaller(ProtoUtils.marshaller(DynamicMessage.getDefaultInstance(of.getOutputType()))).build();
            var metadata = new Metadata();
            if (TOKEN != null) {
                metadata.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + TOKEN);
            }
            var to = io.grpc.ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(metadata));
            return patient(() -> {
                try {
                    var options = CallOptions.DEFAULT.withDeadlineAfter(20, TimeUnit.SECONDS);
                    var out = ClientCalls.blockingUnaryCall(to, method, options, in.build());
                    var told = JsonFormat.printer().preservingProtoFieldNames().print(out);
                    return JsonParser.parseString(told).getAsJsonObject();
                } catch (StatusRuntimeException error) {
                    switch (error.getStatus().getCode()) {
                        case UNAVAILABLE, RESOURCE_EXHAUSTED -> throw new Passes(error.getStatus().toString());
                        // Its ErrorInfo has the reason stale.
                        case ABORTED -> throw new Stale();
                        default -> throw error;
                    }
                }
            });
        }

        static String base64(String text) {
            return Base64.getEncoder().encodeToString(text.getBytes(UTF_8));
        }

        @Override
        public String createHttp(String requestId, String url, Duration delay) throws Exception {
            return call("CreateHttpTask", """
                {"project": "shop", "group": "orders", "request_id": "%s", "url": "%s", "body": "%s",
                 "headers": [{"name": "content-type", "value": "application/json"}], "retry": {"count": 3, "interval": 1},
                 "options": {"delay": "%ds"}}"""
                .formatted(requestId, url, base64("{}"), delay.toSeconds())).get("task_id").getAsString();
        }

        @Override
        public String createKafka(String requestId, String topic, String value) throws Exception {
            return call("CreateKafkaTask", """
                {"project": "shop", "group": "imports", "request_id": "%s", "topic": "%s", "value": "%s", "retry": {"count": 3},
                 "options": {"delay": "1s", "feedback": {"deadline": "3600s", "heartbeat": "%ds"}}}"""
                .formatted(requestId, topic, base64(value), PERIOD.toSeconds())).get("task_id").getAsString();
        }

        @Override
        public Task get(String id) throws Exception {
            return Task.of(call("GetTask", """
                {"task_id": "%s"}""".formatted(id)), "TASK_STATUS_");
        }

        @Override
        public void heartbeat(String id, String ticket, String cursor) throws Exception {
            call("Heartbeat", """
                {"task_id": "%s", "ticket": "%s", "cursor": "%s"}""".formatted(id, ticket, cursor));
        }

        @Override
        public String report(String id, String ticket, String outcome, String cursor, String error) throws Exception {
            return call("ReportResult", """
                {"task_id": "%s", "ticket": "%s", "outcome": "REPORTED_OUTCOME_%s", "cursor": "%s", "error": %s}"""
                .formatted(id, ticket, outcome.toUpperCase(), cursor, json(error))).get("outcome").getAsString();
        }

        @Override
        public String cancel(String id) throws Exception {
            return word(call("CancelTask", """
                {"task_id": "%s"}""".formatted(id)), "outcome", "CANCEL_OUTCOME_");
        }

        @Override
        public void close() {
            channel.shutdownNow();
        }
    }

    /** A turn in the hands of its executor. */
    static class Turn {
        /** How far the work is. The next heartbeat says it, and the next turn begins there if this one is lost. */
        volatile String cursor;
        /** When the last heartbeat was sent that was answered. */
        volatile long heard = System.nanoTime();
        volatile boolean isStale;

        Turn(String cursor) {
            this.cursor = cursor;
        }

        /** The work has come so far. It stops here if an instance has said that the turn is over, or if it may be over. */
        void reached(String cursor) throws Stale {
            this.cursor = cursor;
            if (isStale || System.nanoTime() - heard > PERIOD.toNanos()) throw new Stale();
        }
    }

    static String header(Headers headers, String name) {
        var header = headers.lastHeader(name);
        return header == null ? "" : new String(header.value(), UTF_8);
    }

    /** Works on what is handed over, until it has finished so many tasks. */
    static void execute(Api api, String topic, int tasks) throws Exception {
        // session.timeout.ms: so long after an executor has died another one reads its partitions.
        var settings = Map.<String, Object>of("bootstrap.servers", BROKERS, "group.id", topic + "-executors", "max.poll.records", 1,
            "enable.auto.commit", "false", "auto.offset.reset", "earliest", "isolation.level", "read_committed",
            "session.timeout.ms", 10_000);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (tasks > 0) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    var headers = record.headers();
                    String id = header(headers, "x-delay-id"), ticket = header(headers, "x-delay-ticket");
                    var next = Map.of(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    if (ticket.isEmpty()) {
                        System.err.printf("%s/%d@%d is no task: passed over%n", record.topic(), record.partition(), record.offset());
                        consumer.commitSync(next);
                        continue;
                    }
                    var turn = new Turn(header(headers, "x-delay-cursor"));
                    try {
                        api.heartbeat(id, ticket, turn.cursor);
                    } catch (Stale stale) {
                        turn.isStale = true;
                    }
                    // After the first heartbeat: then a crash before it costs nothing but time.
                    consumer.commitSync(next);
                    if (turn.isStale) continue;
                    System.out.println(record.value() + " rows: turn " + header(headers, "x-delay-attempt"));
                    try {
                        var became = take(api, id, ticket, turn, record.value());
                        System.out.println(became);
                        if (became.equals("finished")) tasks--;
                    } catch (Stale stale) {
                        // Another executor has it, or the task was cancelled.
                        System.err.println("the turn is over");
                    }
                }
            }
        }
    }

    /** Works on one task, sends heartbeats meanwhile, and reports. */
    static String take(Api api, String id, String ticket, Turn turn, String value) throws Exception {
        var beats = Executors.newSingleThreadScheduledExecutor();
        long third = PERIOD.toMillis() / 3;
        beats.scheduleWithFixedDelay(() -> {
            long sent = System.nanoTime();
            try {
                api.heartbeat(id, ticket, turn.cursor);
                turn.heard = sent;
            } catch (Stale stale) {
                turn.isStale = true;
            } catch (Exception error) {
                // The next one may be answered.
            }
        }, third, third, TimeUnit.MILLISECONDS);
        String outcome = "finished", error = "";
        try {
            work(turn, value);
        } catch (Stale stale) {
            throw stale;
        } catch (Exception failure) {
            outcome = "failed";
            // One line of 200 bytes at most.
            var line = failure.toString().replaceAll("[^ -~]", "?");
            error = line.substring(0, Math.min(200, line.length()));
        } finally {
            // A heartbeat behind the result would be stale.
            beats.shutdown();
            beats.awaitTermination(30, TimeUnit.SECONDS);
        }
        return api.report(id, ticket, outcome, turn.cursor, error);
    }

    /**
     * This is what you replace: it imports so many rows. The cursor says how many are done, and an earlier turn may have done some. What
     * this turn does behind its last heartbeat is done again if it is lost, so it must do no harm to do a row twice.
     */
    static void work(Turn turn, String value) throws Exception {
        int rows = Integer.parseInt(value);
        int row = turn.cursor.isEmpty() ? 0 : Integer.parseInt(turn.cursor.replace("row:", ""));
        System.out.println("from row " + row);
        for (; row < rows; row++) {
            Thread.sleep(100);
            turn.reached("row:" + (row + 1));
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 2 || arguments.length > 3 || !List.of("http", "grpc").contains(arguments[0])) {
            System.err.println(USAGE);
            System.exit(1);
        }
        Api api = arguments[0].equals("http") ? new OverHttp() : new OverGrpc();
        String topic = arguments[1];
        if (arguments.length == 2) execute(api, topic, Integer.MAX_VALUE);
        String url = arguments[2], once = UUID.randomUUID().toString();
        var called = api.createHttp(once, url, Duration.ofSeconds(2));
        var again = api.createHttp(once, url, Duration.ofSeconds(2));
        System.out.println(called.equals(again) ? "the same task" : "two tasks");

        // 90 rows last longer than a heartbeat may be away.
        var imported = api.createKafka(UUID.randomUUID().toString(), topic, "90");
        execute(api, topic, 1);

        for (var id : List.of(imported, called)) {
            var task = api.get(id);
            for (; !task.hasEnded(); task = api.get(id)) Thread.sleep(200);
            System.out.println(task.status + " " + task.attempts);
        }
        var later = api.createHttp(UUID.randomUUID().toString(), url, Duration.ofHours(1));
        System.out.println(api.cancel(later));
        if (api instanceof OverGrpc grpc) grpc.close();
    }
}
