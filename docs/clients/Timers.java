import static java.nio.charset.StandardCharsets.UTF_8;

import java.net.ConnectException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Timers {
    static final String BROKERS = System.getenv().getOrDefault("BROKERS", "localhost:9092");
    static final URI SERVER = URI.create(System.getenv().getOrDefault("SERVER", "http://localhost:8080"));
    static final String INTAKE = System.getenv().getOrDefault("INTAKE", "waterclock.intake");

    // acks=all and idempotent are its defaults.
    static final KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
        Map.of("bootstrap.servers", BROKERS), new ByteArraySerializer(), new ByteArraySerializer());

    static final String USAGE = """
        Timers of waterclock from Java.

          java -cp 'lib/*' Timers.java send TARGET KEY ID DELAY TEXT      the record arrives in TARGET after DELAY (30m, 1h30m, 90s)
          java -cp 'lib/*' Timers.java replace TARGET KEY ID DELAY TEXT   takes the place of the pending record of KEY and ID
          java -cp 'lib/*' Timers.java cancel KEY ID                      keeps it from being delivered; nobody says whether it was in time
          java -cp 'lib/*' Timers.java ask KEY ID                         the same, and says what became of it

        The recipes of docs/cookbook.md:

          java -cp 'lib/*' Timers.java order TARGET ORDER DELAY           an order is made: after DELAY it is to be closed
          java -cp 'lib/*' Timers.java paid ORDER                         it is paid: says whether to ship it or to give the money back
          java -cp 'lib/*' Timers.java stock TARGET SKU ID DELAY LABEL    stock is reserved: after DELAY it is to be released
          java -cp 'lib/*' Timers.java longer SKU ID DELAY                the reservation lasts longer: DELAY from now
          java -cp 'lib/*' Timers.java labelled LABEL                     lists what is pending with this label
          java -cp 'lib/*' Timers.java coupon TARGET CUSTOMER COUPON ENDS SECONDS
                            reminds SECONDS before ENDS (a time as 2026-12-24T18:00:00Z); once more: the end is another one
          java -cp 'lib/*' Timers.java payment TARGET PAYMENT INTERVAL TRIES FINAL
                            asks for a result every INTERVAL, TRIES times at most; it is final the FINALth time
          java -cp 'lib/*' Timers.java retry TOPIC GIVEN_UP SECONDS TRIES RECORDS
                            consumes TOPIC; what fails is tried again after SECONDS, twice that, ..., TRIES times at most,
                            and then written to GIVEN_UP. Ends when so many RECORDS are done or given up
          java -cp 'lib/*' Timers.java consume TOPIC RECORDS              consumes so many records and prints them

        BROKERS, SERVER and INTAKE in the environment say where: localhost:9092, http://localhost:8080, waterclock.intake.""";

    /** Returns when all in-sync replicas have the record. */
    static void write(String topic, byte[] key, byte[] value, List<Header> headers) throws Exception {
        producer.send(new ProducerRecord<>(topic, null, key, value, headers)).get();
    }

    static void submit(String key, String value, String... headers) throws Exception {
        write(INTAKE, key.getBytes(UTF_8), value == null ? null : value.getBytes(UTF_8), headers(headers));
    }

    static List<Header> headers(String... namesAndValues) {
        var headers = new ArrayList<Header>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            headers.add(new RecordHeader(namesAndValues[i], namesAndValues[i + 1].getBytes(UTF_8)));
        }
        return headers;
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

    /** Cancels, and says what became of it. */
    static String ask(String key, String timer) throws Exception {
        return said(http("DELETE", path(key, timer), null));
    }

    static String path(String key, String timer) {
        return "/v1/timers/" + escape(timer) + "?wait=5s&key=" + escape(key);
    }

    static String escape(String text) {
        return URLEncoder.encode(text, UTF_8).replace("+", "%20");
    }

    /**
     * 503: the timer's lane moves from one instance to another; the answer says how long to wait. 202: not decided within
     * wait, and where to ask again. 410: the instance that knew has gone. Asking twice is no mistake: the answer is the same.
     */
    static String http(String method, String path, String body) throws Exception {
        var http = HttpClient.newHttpClient();
        var publisher = body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(body);
        var first = HttpRequest.newBuilder(SERVER.resolve(path)).method(method, publisher)
            .header("content-type", "application/json").build();
        var next = first;
        for (long end = System.nanoTime() + Duration.ofSeconds(30).toNanos(); System.nanoTime() < end; ) {
            HttpResponse<String> answer;
            try {
                answer = http.send(next, BodyHandlers.ofString());
            } catch (ConnectException nobodyListensThereYet) {
                Thread.sleep(1000);
                continue;
            }
            switch (answer.statusCode()) {
                // 404, 409: its code says why nothing was done.
                case 200, 404, 409 -> {
                    return answer.body();
                }
                case 202 -> next = HttpRequest.newBuilder(SERVER.resolve(answer.headers().firstValue("location").get())).build();
                case 410 -> next = first;
                case 503 -> Thread.sleep(1000 * answer.headers().firstValueAsLong("retry-after").orElse(1));
                default -> throw new IllegalStateException(answer.statusCode() + " " + answer.body());
            }
        }
        return "{\"outcome\":\"pending\"}";
    }

    /** "cancelled", "delivered"; "unknown", with what it ended as if that is known: "unknown (dead, target_missing)". */
    static String said(String body) {
        var names = body.contains("\"outcome\"") ? List.of("outcome", "state", "code") : List.of("code", "state");
        var words = new ArrayList<>(names.stream().map(name -> member(body, name)).toList());
        words.removeIf(String::isEmpty);
        var first = words.remove(0);
        return first + (words.isEmpty() ? "" : " (" + String.join(", ", words) + ")");
    }

    /** Enough for the answers of this program: a service has a library for JSON. */
    static String member(String json, String name) {
        var found = Pattern.compile("\"" + name + "\":\"?([^\",}]+)").matcher(json);
        return found.find() ? found.group(1) : "";
    }

    /** How often waterclock has delivered it: x-delay-trace: 1 asks for this header. */
    static int attempt(ConsumerRecord<?, ?> record) {
        var header = record.headers().lastHeader("x-delay-attempt");
        return header == null ? 0 : Integer.parseInt(new String(header.value(), UTF_8));
    }

    static List<Header> own(ConsumerRecord<?, ?> record) {
        var headers = new ArrayList<>(List.of(record.headers().toArray()));
        headers.removeIf(header -> header.key().startsWith("x-delay-"));
        return headers;
    }

    /**
     * Submits a consumed record for its partition again. An id goes along: if we end before the offset is committed, the record is
     * submitted twice. While the first one waits, the second one does nothing.
     */
    static void again(ConsumerRecord<byte[], byte[]> record, String delay) throws Exception {
        var headers = own(record);
        record.headers().headers("x-delay-id").forEach(headers::add);
        headers.addAll(headers("x-delay", delay, "x-delay-target", record.topic(),
            "x-delay-partition", String.valueOf(record.partition()), "x-delay-trace", "1",
            "x-delay-attempt", String.valueOf(attempt(record))));
        write(INTAKE, record.key(), record.value(), headers);
    }

    interface Work {
        /** Says whether the record is finished. */
        boolean on(ConsumerRecord<byte[], byte[]> record) throws Exception;
    }

    /** Consumes until so many records are finished. */
    static void each(String topic, int records, Work work) throws Exception {
        var settings = Map.<String, Object>of("bootstrap.servers", BROKERS, "group.id", topic + "-worker",
            "enable.auto.commit", "false", "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (true) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    if (work.on(record)) records--;
                    // Only now: if we end before, the record is consumed once more, and nothing is lost.
                    consumer.commitSync(Map.of(new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1)));
                    if (records == 0) return;
                }
            }
        }
    }

    static String text(byte[] bytes) {
        return bytes == null ? "" : new String(bytes, UTF_8);
    }

    /** The end of an order that nobody pays. */
    static void order(String target, String order, String delay) throws Exception {
        submit(order, "nobody has paid", "x-delay", delay, "x-delay-target", target, "x-delay-id", "payment");
    }

    static void paid(String order) throws Exception {
        var outcome = ask(order, "payment");
        switch (outcome) {
            // It will never be closed.
            case "cancelled" -> System.out.println(order + ": ship it");
            // It was closed a moment ago.
            case "delivered" -> System.out.println(order + ": give the money back");
            // pending: ask again. unknown: there is no such order, or not any more.
            default -> {
                System.err.println(order + ": " + outcome);
                System.exit(1);
            }
        }
    }

    static void stock(String target, String sku, String reservation, String delay, String label) throws Exception {
        submit(sku, "release " + reservation,
            "x-delay", delay, "x-delay-target", target, "x-delay-id", reservation, "x-delay-label", label);
    }

    /** replaced: the same record, later. not_pending (delivered): it is released. */
    static String longer(String sku, String reservation, String delay) throws Exception {
        return said(http("PATCH", path(sku, reservation), "{\"delay\": \"" + delay + "\"}"));
    }

    static void labelled(String label) throws Exception {
        for (var page = ""; !page.equals("&page=null"); ) {
            var body = http("GET", "/v1/timers?state=delay&label=" + escape(label) + page, null);
            for (var timer : Pattern.compile("\\{[^{}\\[\\]]*\\}").matcher(body).results().toList()) {
                var left = Long.parseLong(member(timer.group(), "due")) - System.currentTimeMillis();
                System.out.println(member(timer.group(), "id") + " of " + member(timer.group(), "key")
                    + ", due in " + Math.round(left / 1000.0) + " s");
            }
            page = "&page=" + escape(member(body, "next"));
        }
    }

    /** Made and moved by the same call. A time that is past is now; after its end it is a dead letter (expired), and no mail. */
    static void coupon(String target, String customer, String coupon, String ends, String seconds) throws Exception {
        var reminds = Instant.parse(ends).minusSeconds(Long.parseLong(seconds));
        submit(customer, coupon + " ends at " + ends,
            "x-delay-until", reminds.toString(), "x-delay-expires", ends, "x-delay-target", target,
            "x-delay-id", coupon, "x-delay-action", "replace");
    }

    static void payment(String target, String payment, String interval, int tries, int isFinal) throws Exception {
        submit(payment, "is it final?",
            "x-delay", interval, "x-delay-target", target, "x-delay-id", "result", "x-delay-trace", "1");
        each(target, 1, record -> {
            var tried = attempt(record);
            // Stands for a question to the payment service.
            if (tried >= isFinal) {
                System.out.println(text(record.key()) + ": final, asked " + tried + " times");
            } else if (tried >= tries) {
                System.out.println(text(record.key()) + ": given up, asked " + tried + " times");
            } else {
                again(record, interval);
                return false;
            }
            return true;
        });
    }

    static void retry(String topic, String givenUp, int seconds, int tries, int records) throws Exception {
        each(topic, records, record -> {
            var name = text(record.value());
            var tried = attempt(record);
            try {
                work(name, tried);
                System.out.println(name + ": done");
            } catch (RuntimeException error) {
                if (tried < tries) {
                    again(record, (seconds << tried) + "s");
                    System.out.println(name + ": again");
                    return false;
                }
                var headers = own(record);
                headers.addAll(headers("why", String.valueOf(error.getMessage())));
                write(givenUp, record.key(), record.value(), headers);
                System.out.println(name + ": given up");
            }
            return true;
        });
    }

    /** Stands for your work. "fail 2" fails twice. */
    static void work(String name, int tried) {
        if (name.startsWith("fail ") && tried < Integer.parseInt(name.substring(5))) {
            throw new IllegalStateException("failure " + (tried + 1));
        }
    }

    /** What closes an order, releases stock, or mails a reminder. */
    static void consume(String topic, int records) throws Exception {
        each(topic, records, record -> {
            System.out.println(text(record.key()) + ": " + text(record.value()));
            return true;
        });
    }

    public static void main(String[] args) throws Exception {
        var counts = Map.ofEntries(Map.entry("send", 5), Map.entry("replace", 5), Map.entry("cancel", 2), Map.entry("ask", 2),
            Map.entry("order", 3), Map.entry("paid", 1), Map.entry("stock", 5), Map.entry("longer", 3), Map.entry("labelled", 1),
            Map.entry("coupon", 5), Map.entry("payment", 5), Map.entry("retry", 5), Map.entry("consume", 2));
        if (args.length == 0 || args.length != 1 + counts.getOrDefault(args[0], -1)) {
            System.err.println(USAGE);
            System.exit(1);
        }
        switch (args[0]) {
            case "send" -> send(args[1], args[2], args[3], args[4], args[5]);
            case "replace" -> replace(args[1], args[2], args[3], args[4], args[5]);
            case "cancel" -> cancel(args[1], args[2]);
            case "ask" -> System.out.println(ask(args[1], args[2]));
            case "order" -> order(args[1], args[2], args[3]);
            case "paid" -> paid(args[1]);
            case "stock" -> stock(args[1], args[2], args[3], args[4], args[5]);
            case "longer" -> System.out.println(longer(args[1], args[2], args[3]));
            case "labelled" -> labelled(args[1]);
            case "coupon" -> coupon(args[1], args[2], args[3], args[4], args[5]);
            case "payment" -> payment(args[1], args[2], args[3], Integer.parseInt(args[4]), Integer.parseInt(args[5]));
            case "retry" -> retry(args[1], args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]), Integer.parseInt(args[5]));
            case "consume" -> consume(args[1], Integer.parseInt(args[2]));
        }
        producer.close();
    }
}
