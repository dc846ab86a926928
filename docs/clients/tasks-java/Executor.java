import static java.nio.charset.StandardCharsets.UTF_8;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.net.InetAddress;
import java.net.URI;
import java.net.URLEncoder;
import java.net.UnknownHostException;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Executes shards of runs, over HTTP: says that it lives, does the rows of its shard, reports, and goes on where an earlier turn came to.
 * It does what docs/clients/run_executor.py does. Both may share the shards of one run.
 */
public class Executor {
    static final String USAGE = """
        Executes shards of runs.

          java -cp 'lib/*' Executor.java 127.0.0.1:8080 settlement     until it is stopped; start as many as you like

        The value of the run says how much there is to do: {"rows": 600, "ms": 20} are 600 rows in all, of 20 ms each.

        In the environment: BROKERS says where Kafka is (localhost:9092). TOKEN has the token of the API, if there is one. HEARTBEAT is
        `heartbeat` of the run in seconds (5). It must not be longer here than there.""";

    static final String BROKERS = System.getenv().getOrDefault("BROKERS", "localhost:9092");
    static final String TOKEN = System.getenv().getOrDefault("TOKEN", "");
    /** {@code runs shards} shows who works on a shard. */
    static final String NAME = name();
    /** A heartbeat has to come within this time. It is sent at a third of it. All times of this kind are nanoseconds. */
    static final long PERIOD = (long) (Double.parseDouble(System.getenv().getOrDefault("HEARTBEAT", "5")) * 1e9);
    /** The work stops this long after the last heartbeat that was answered. The rest is for a step that cannot be cut short. */
    static final long SILENCE = PERIOD / 10 * 8;
    /** So long a report is sent again and again. */
    static final long PATIENCE = TimeUnit.SECONDS.toNanos(30);
    /** With these answers the turn is over. A repeated call has the same answer. */
    static final List<String> GONE = List.of("stale", "unknown_task", "wrong_ticket", "bad_ticket");

    static final HttpClient HTTP = HttpClient.newBuilder().connectTimeout(Duration.ofNanos(PERIOD / 3)).build();
    static final CountDownLatch STOPPING = new CountDownLatch(1);

    /** The machine, as far as it knows its name, and the process. */
    static String name() {
        long process = ProcessHandle.current().pid();
        try {
            return InetAddress.getLocalHost().getHostName() + "-" + process;
        } catch (UnknownHostException nameless) {
            return "java-" + process;
        }
    }

    /** The turn is over for this executor, and this is why: stale, unheard, stopping, unreported. */
    static class Over extends Exception {
        Over(String why) {
            super(why);
        }
    }

    /** The same call may go well later. */
    static class Unanswered extends Exception {
        Unanswered(String why) {
            super(why);
        }
    }

    static void complain(String what) {
        System.err.println(what);
    }

    /** The answer of an instance. */
    static JsonObject post(URI server, String task, String what, long timeout, JsonObject fields) throws Exception {
        var path = "/v1/tasks/" + URLEncoder.encode(task, UTF_8) + "/" + what;
        var request = HttpRequest.newBuilder(server.resolve(path)).timeout(Duration.ofNanos(timeout))
            .header("content-type", "application/json").POST(BodyPublishers.ofString(fields.toString()));
        if (!TOKEN.isEmpty()) request.header("authorization", "Bearer " + TOKEN);
        try {
            var answer = HTTP.send(request.build(), BodyHandlers.ofString());
            var told = JsonParser.parseString(answer.body()).getAsJsonObject();
            if (answer.statusCode() < 300) return told;
            var code = told.has("code") ? told.get("code").getAsString() : "without a code";
            if (GONE.contains(code)) throw new Over("stale");
            throw new Unanswered(answer.statusCode() + " " + code);
        } catch (IOException | RuntimeException nobodyAnswers) {
            throw new Unanswered(nobodyAnswers.toString());
        }
    }

    /** One attempt at one shard, in the hands of this executor. */
    static class Turn {
        final URI server;
        final String task, ticket, number, shard, value;
        /** For which time of its schedule it is, in milliseconds since 1970. Empty: it is of no schedule, or was asked for by hand. */
        final String nominal;
        volatile String cursor;
        volatile int percent = -1;
        /** When the last heartbeat was sent that was answered. */
        volatile long heard;
        volatile String over;
        final CountDownLatch ended = new CountDownLatch(1);

        Turn(URI server, ConsumerRecord<String, String> record) {
            this.server = server;
            value = record.value() == null ? "" : record.value();
            task = header(record, "x-delay-id", "");
            ticket = header(record, "x-delay-ticket", "");
            number = header(record, "x-delay-attempt", "1");
            // A task that is of no run is a whole by itself.
            shard = header(record, "x-delay-shard", "0/1");
            nominal = header(record, "x-delay-nominal", "");
            cursor = header(record, "x-delay-cursor", "");
        }

        static String header(ConsumerRecord<?, ?> record, String name, String otherwise) {
            var header = record.headers().lastHeader(name);
            return header == null || header.value() == null ? otherwise : new String(header.value(), UTF_8);
        }

        /** The times are for people who compare the lines of several executors. Nothing is decided by them. */
        void say(String word, String what, long at) {
            System.out.println(word + " " + shard + " turn " + number + " " + what + " at " + at);
        }

        /** Ends it for this executor. What was said first counts. */
        synchronized void end(String why) {
            if (over == null) over = why;
            ended.countDown();
        }

        void heartbeat() throws Exception {
            long sent = System.nanoTime();
            var fields = new JsonObject();
            fields.addProperty("ticket", ticket);
            fields.addProperty("worker", NAME);
            if (!cursor.isEmpty()) fields.addProperty("cursor", cursor);
            if (percent >= 0) fields.addProperty("percent", percent);
            post(server, task, "heartbeat", PERIOD / 3, fields);
            // The period is counted from a time that was later, so this is on the safe side.
            heard = sent;
        }

        /** Sends heartbeats until the work has ended, or the turn. */
        void beat() {
            long pause = PERIOD / 3;
            try {
                while (!ended.await(pause, TimeUnit.NANOSECONDS)) {
                    try {
                        heartbeat();
                        pause = PERIOD / 3;
                    } catch (Over over) {
                        end(over.getMessage());
                    } catch (Unanswered error) {
                        complain("no heartbeat: " + error.getMessage());
                        pause = PERIOD / 12;
                    }
                }
            } catch (Exception interrupted) {
                // Then the work stops, as nothing is answered any more.
                complain("no heartbeats: " + interrupted);
            }
        }

        /** Stops the work here if the turn is over, or if it may be over: then another executor may have the shard soon. */
        void check() throws Over {
            if (over == null && System.nanoTime() - heard > SILENCE) end("unheard");
            if (over != null) throw new Over(over);
        }

        /** The work has come so far. The next heartbeat says so, and the next turn begins here if this one is lost. */
        void reached(String cursor, int percent) throws Over {
            this.cursor = cursor;
            this.percent = percent;
            check();
        }

        /** Sleeps for so long, or until the turn is over. */
        void sleep(Duration time) throws Exception {
            long until = System.nanoTime() + time.toNanos();
            while (true) {
                check();
                long now = System.nanoTime();
                if (now - until >= 0) return;
                ended.await(Math.max(0, Math.min(until - now, heard + SILENCE - now)) + 1_000_000, TimeUnit.NANOSECONDS);
            }
        }

        /** Says how the work went, and is told what became of the shard by that. */
        String report(String outcome, String error) throws Exception {
            var fields = new JsonObject();
            fields.addProperty("ticket", ticket);
            fields.addProperty("worker", NAME);
            fields.addProperty("outcome", outcome);
            if (!cursor.isEmpty()) fields.addProperty("cursor", cursor);
            if (error != null) fields.addProperty("error", error);
            long until = System.nanoTime() + PATIENCE;
            while (true) {
                try {
                    return post(server, task, "result", TimeUnit.SECONDS.toNanos(10), fields).get("outcome").getAsString();
                } catch (Unanswered failure) {
                    complain("no report: " + failure.getMessage());
                    boolean isOver = System.nanoTime() - until > 0;
                    if (isOver || STOPPING.await(500, TimeUnit.MILLISECONDS)) throw new Over("unreported");
                }
            }
        }
    }

    /** Settles one row. It only takes its time here. */
    static void settle(Turn turn, int row, Duration time) throws Exception {
        turn.sleep(time);
    }

    /**
     * This is what you replace: it settles the rows of this shard, which are those whose remainder by n is i. The cursor says how many of
     * them are done. What this turn does behind its last heartbeat is done again if it is lost, so it must do no harm to settle a row
     * twice.
     */
    static void work(Turn turn) throws Exception {
        var told = JsonParser.parseString(turn.value).getAsJsonObject();
        int rows = told.get("rows").getAsInt();
        var time = Duration.ofMillis(told.get("ms").getAsLong());
        var parts = turn.shard.split("/");
        int shard = Integer.parseInt(parts[0]), shards = Integer.parseInt(parts[1]);
        int own = Math.max(0, (rows - shard + shards - 1) / shards);
        int done = turn.cursor.isEmpty() ? 0 : Integer.parseInt(turn.cursor.replaceFirst("^row:", ""));
        while (done < own) {
            settle(turn, shard + done * shards, time);
            done++;
            turn.reached("row:" + done, 100 * done / own);
        }
    }

    /** Works on one shard, sends heartbeats meanwhile, and reports. */
    static void carryOut(Turn turn) {
        long at = System.currentTimeMillis();
        try {
            turn.check();
        } catch (Over over) {
            complain(turn.shard + " turn " + turn.number + " does not begin: " + over.getMessage());
            return;
        }
        var nominal = turn.nominal.isEmpty() ? "" : " nominal " + turn.nominal;
        turn.say("begin", "from " + (turn.cursor.isEmpty() ? "-" : turn.cursor) + nominal, at);
        var beats = new Thread(turn::beat);
        beats.setDaemon(true);
        beats.start();
        String outcome = "finished", error = null;
        try {
            work(turn);
        } catch (Over over) {
            turn.say("stop", over.getMessage(), System.currentTimeMillis());
            return;
        } catch (Exception failure) {
            outcome = "failed";
            // One line of 200 bytes at most.
            var line = failure.toString().replaceAll("[^ -~]", "?");
            error = line.substring(0, Math.min(200, line.length()));
        } finally {
            turn.ended.countDown();
        }
        // This is when the work has ended. The report may take longer.
        at = System.currentTimeMillis();
        try {
            turn.say("end", turn.report(outcome, error), at);
        } catch (Over over) {
            turn.say("stop", over.getMessage(), at);
        } catch (Exception interrupted) {
            turn.say("stop", "unreported", at);
        }
    }

    enum Verdict { BEGIN, WAIT, PASS_OVER }

    /** What to do with a record. Its turn begins once a heartbeat was answered and then the offset committed. */
    static Verdict take(KafkaConsumer<?, ?> consumer, Turn turn, ConsumerRecord<?, ?> record) throws Exception {
        var place = record.topic() + "/" + record.partition() + "@" + record.offset();
        var verdict = Verdict.BEGIN;
        try {
            if (turn.ticket.isEmpty()) throw new Over("no task");
            turn.heartbeat();
        } catch (Over over) {
            complain(place + " is passed over: " + over.getMessage());
            verdict = Verdict.PASS_OVER;
        } catch (Unanswered error) {
            complain(place + " waits: " + error.getMessage());
            return Verdict.WAIT;
        }
        try {
            // Kafka refuses it if the partition was taken away. So only one executor begins the turn of a record, though two may have
            // read it.
            consumer.commitSync(Map.of(partition(record), new OffsetAndMetadata(record.offset() + 1)), Duration.ofSeconds(10));
        } catch (KafkaException error) {
            complain(place + " waits: " + error);
            return Verdict.WAIT;
        }
        return verdict;
    }

    static TopicPartition partition(ConsumerRecord<?, ?> record) {
        return new TopicPartition(record.topic(), record.partition());
    }

    /** Works on what is handed over, one shard after the other, until it is told to stop. */
    static void execute(URI server, String topic) throws Exception {
        // session.timeout.ms: so long after an executor has died another one reads its partitions.
        var settings = Map.<String, Object>of("bootstrap.servers", BROKERS, "group.id", topic + "-executors", "max.poll.records", 1,
            "enable.auto.commit", "false", "auto.offset.reset", "earliest", "isolation.level", "read_committed",
            "session.timeout.ms", 10_000);
        // Records whose work has not begun.
        var waiting = new ArrayDeque<ConsumerRecord<String, String>>();
        Turn working = null;
        Thread worker = null;
        long notBefore = System.nanoTime();
        boolean isPaused = false;
        // Whoever closes it leaves the group, so that others have the partitions at once.
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    // Who has the partitions next reads these records again.
                    waiting.removeIf(record -> partitions.contains(partition(record)));
                }

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}
            });
            while (STOPPING.getCount() > 0) {
                // While there is work, too: who does not poll for max.poll.interval.ms is put out of the group.
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    waiting.add(record);
                    consumer.pause(consumer.assignment());
                    isPaused = true;
                }
                boolean isBusy = worker != null && worker.isAlive();
                if (!waiting.isEmpty() && !isBusy && System.nanoTime() - notBefore >= 0) {
                    var turn = new Turn(server, waiting.peek());
                    var verdict = take(consumer, turn, waiting.peek());
                    if (verdict == Verdict.WAIT) {
                        notBefore = System.nanoTime() + TimeUnit.SECONDS.toNanos(1);
                    } else {
                        waiting.remove();
                    }
                    if (verdict == Verdict.BEGIN) {
                        working = turn;
                        worker = new Thread(() -> carryOut(turn));
                        worker.start();
                    }
                }
                if (isPaused && waiting.isEmpty()) {
                    consumer.resume(consumer.assignment());
                    isPaused = false;
                }
            }
            if (worker != null) {
                working.end("stopping");
                worker.join();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length != 2) {
            System.err.println(USAGE);
            System.exit(1);
        }
        var address = arguments[0];
        var server = URI.create(address.contains("://") ? address : "http://" + address);
        var main = Thread.currentThread();
        // SIGTERM: the JVM ends once this is done.
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            STOPPING.countDown();
            try {
                main.join();
            } catch (InterruptedException ends) {
                // It ends all the same.
            }
        }));
        execute(server, arguments[1]);
    }
}
