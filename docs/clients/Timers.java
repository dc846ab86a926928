import static java.nio.charset.StandardCharsets.UTF_8;

import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Timers {
    static final String BROKERS = System.getenv().getOrDefault("BROKERS", "localhost:9092");
    static final URI SERVER = URI.create(System.getenv().getOrDefault("SERVER", "http://localhost:8080"));
    static final String INTAKE = System.getenv().getOrDefault("INTAKE", "waterclock.intake");

    // acks=all and idempotent are its defaults.
    static final KafkaProducer<String, String> producer = new KafkaProducer<>(
        Map.of("bootstrap.servers", BROKERS), new StringSerializer(), new StringSerializer());

    static final String USAGE = """
        Timers of waterclock from Java.

          java -cp 'lib/*' Timers.java send TARGET KEY ID DELAY TEXT      the record arrives in TARGET after DELAY (30m, 1h30m, 90s)
          java -cp 'lib/*' Timers.java replace TARGET KEY ID DELAY TEXT   takes the place of the pending record of KEY and ID
          java -cp 'lib/*' Timers.java cancel KEY ID                      keeps it from being delivered; nobody says whether it was in time
          java -cp 'lib/*' Timers.java ask KEY ID                         the same, and says what became of it
          java -cp 'lib/*' Timers.java poll TARGET KEY INTERVAL ROUNDS    consumes a record and sends it again, after equal intervals

        BROKERS, SERVER and INTAKE in the environment say where: localhost:9092, http://localhost:8080, waterclock.intake.""";

    /** Returns when all in-sync replicas have the record. */
    static void submit(String key, String value, String... headers) throws Exception {
        var record = new ProducerRecord<>(INTAKE, key, value);
        for (int i = 0; i < headers.length; i += 2) {
            record.headers().add(headers[i], headers[i + 1].getBytes(UTF_8));
        }
        producer.send(record).get();
    }

    /**
     * An id makes it a timer: it can be cancelled and replaced, and a second send of a pending id does nothing, so a send may be
     * repeated after an error. Key and id together are its name.
     */
    static void send(String target, String key, String timer, String delay, String text) throws Exception {
        submit(key, text, "x-delay", delay, "x-delay-target", target, "x-delay-id", timer);
    }

    /** If nothing is pending under this name, it is created. */
    static void replace(String target, String key, String timer, String delay, String text) throws Exception {
        submit(key, text, "x-delay", delay, "x-delay-target", target, "x-delay-id", timer, "x-delay-action", "replace");
    }

    /** If it was acknowledged 50 ms (settle) before the record was due, it was in time. */
    static void cancel(String key, String timer) throws Exception {
        submit(key, null, "x-delay-action", "cancel", "x-delay-id", timer);
    }

    /**
     * 503: the timer's lane moves from one instance to another; the answer says how long to wait. 202: not decided within
     * wait, and where to ask again. Asking twice is no mistake: the answer is the same.
     */
    static String ask(String key, String timer) throws Exception {
        var http = HttpClient.newHttpClient();
        var first = SERVER.resolve("/v1/timers/" + escape(timer) + "?wait=5s&key=" + escape(key));
        var next = HttpRequest.newBuilder(first).DELETE().build();
        for (long end = System.nanoTime() + Duration.ofSeconds(30).toNanos(); System.nanoTime() < end; ) {
            var answer = http.send(next, BodyHandlers.ofString());
            switch (answer.statusCode()) {
                case 200 -> {
                    return said(answer.body());
                }
                case 202 -> next = HttpRequest.newBuilder(SERVER.resolve(answer.headers().firstValue("location").get())).build();
                // Who would have known has gone.
                case 410 -> next = HttpRequest.newBuilder(first).DELETE().build();
                case 503 -> Thread.sleep(1000 * answer.headers().firstValueAsLong("retry-after").orElse(1));
                default -> throw new IllegalStateException(answer.statusCode() + " " + answer.body());
            }
        }
        return "pending";
    }

    /** "cancelled", "delivered"; "unknown", with what it ended as if that is known: "unknown (dead)". */
    static String said(String body) {
        var said = new StringBuilder(member(body, "outcome"));
        var more = new ArrayList<>(List.of(member(body, "state"), member(body, "code")));
        more.removeIf(String::isEmpty);
        return said.append(more.isEmpty() ? "" : " (" + String.join(", ", more) + ")").toString();
    }

    static String member(String body, String name) {
        var found = Pattern.compile("\"" + name + "\":\"(\\w+)\"").matcher(body);
        return found.find() ? found.group(1) : "";
    }

    static String escape(String text) {
        return URLEncoder.encode(text, UTF_8).replace("+", "%20");
    }

    /**
     * Sends a consumed record for its partition again, after the interval that its header says. With
     * x-delay-trace: 1 a record arrives with how often it was delivered.
     */
    static void again(ConsumerRecord<String, String> record) throws Exception {
        submit(record.key(), record.value(),
            "x-delay", header(record, "interval"), "x-delay-target", record.topic(),
            "x-delay-partition", String.valueOf(record.partition()), "x-delay-trace", "1",
            "x-delay-attempt", header(record, "x-delay-attempt"), "interval", header(record, "interval"));
    }

    static String header(ConsumerRecord<?, ?> record, String name) {
        return new String(record.headers().lastHeader(name).value(), UTF_8);
    }

    static void poll(String target, String key, String interval, String rounds) throws Exception {
        submit(key, "is it there?", "x-delay", interval, "x-delay-target", target, "x-delay-trace", "1", "interval", interval);
        var settings = Map.<String, Object>of("bootstrap.servers", BROKERS, "group.id", target + "-polls",
            "enable.auto.commit", "false", "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(target));
            for (var attempt = "0"; !attempt.equals(rounds); ) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    attempt = header(record, "x-delay-attempt");
                    System.out.println("round " + attempt);
                    if (!attempt.equals(rounds)) again(record);
                }
                // Only now: if we end before, it is asked again.
                consumer.commitSync();
            }
        }
    }

    public static void main(String[] args) throws Exception {
        var counts = Map.of("send", 5, "replace", 5, "cancel", 2, "ask", 2, "poll", 4);
        if (args.length == 0 || args.length != 1 + counts.getOrDefault(args[0], -1)) {
            System.err.println(USAGE);
            System.exit(1);
        }
        switch (args[0]) {
            case "send" -> send(args[1], args[2], args[3], args[4], args[5]);
            case "replace" -> replace(args[1], args[2], args[3], args[4], args[5]);
            case "cancel" -> cancel(args[1], args[2]);
            case "ask" -> System.out.println(ask(args[1], args[2]));
            case "poll" -> poll(args[1], args[2], args[3], args[4]);
        }
        producer.close();
    }
}
