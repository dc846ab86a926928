package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	brokers = env("BROKERS", "localhost:9092")
	server  = env("SERVER", "http://localhost:8080")
	intake  = env("INTAKE", "waterclock.intake")
	ctx     = context.Background()
)

const usage = `Timers of waterclock from Go.

  go run timers.go send TARGET KEY ID DELAY TEXT      the record arrives in TARGET after DELAY (30m, 1h30m, 90s)
  go run timers.go replace TARGET KEY ID DELAY TEXT   takes the place of the pending record of KEY and ID
  go run timers.go cancel KEY ID                      keeps it from being delivered; nobody says whether it was in time
  go run timers.go ask KEY ID                         the same, and says what became of it
  go run timers.go poll TARGET KEY INTERVAL ROUNDS    consumes a record and sends it again, after equal intervals

BROKERS, SERVER and INTAKE in the environment say where: localhost:9092, http://localhost:8080, waterclock.intake.`

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

// submit returns when all in-sync replicas have the record: franz-go asks for all of them, and is idempotent, by default.
func submit(client *kgo.Client, key, value []byte, headers ...string) {
	record := &kgo.Record{Topic: intake, Key: key, Value: value}
	for i := 0; i < len(headers); i += 2 {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	must(client.ProduceSync(ctx, record).First())
}

// ask cancels, and says what became of it. 503: the timer's lane moves from one instance to another; the answer says how long to
// wait. 202: not decided within wait, and where to ask again. Asking twice is no mistake: the answer is the same.
func ask(key, timer string) string {
	first := server + "/v1/timers/" + url.PathEscape(timer) + "?wait=5s&key=" + url.QueryEscape(key)
	method, next := http.MethodDelete, first
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		answer := must(http.DefaultClient.Do(must(http.NewRequest(method, next, nil))))
		var body struct{ Outcome, State, Code, Detail string }
		must(0, json.NewDecoder(answer.Body).Decode(&body))
		answer.Body.Close()
		switch answer.StatusCode {
		case http.StatusOK:
			return said(body.Outcome, body.State, body.Code)
		case http.StatusAccepted:
			method, next = http.MethodGet, must(answer.Location()).String()
		case http.StatusGone: // who would have known has gone
			method, next = http.MethodDelete, first
		case http.StatusServiceUnavailable:
			seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
			time.Sleep(time.Duration(max(seconds, 1)) * time.Second)
		default:
			must(0, fmt.Errorf("%s: %s %s", answer.Status, body.Code, body.Detail))
		}
	}
	return "pending"
}

// said is "cancelled", "delivered"; "unknown", with what it ended as if that is known: "unknown (dead)".
func said(outcome string, more ...string) string {
	more = slices.DeleteFunc(more, func(word string) bool { return word == "" })
	if len(more) == 0 {
		return outcome
	}
	return outcome + " (" + strings.Join(more, ", ") + ")"
}

// again sends a consumed record for its partition again, after the interval that its header says.
func again(client *kgo.Client, record *kgo.Record) {
	submit(client, record.Key, record.Value,
		"x-delay", header(record, "interval"), "x-delay-target", record.Topic,
		"x-delay-partition", strconv.Itoa(int(record.Partition)), "x-delay-trace", "1",
		"x-delay-attempt", header(record, "x-delay-attempt"), "interval", header(record, "interval"))
}

func header(record *kgo.Record, name string) string {
	for _, header := range record.Headers {
		if header.Key == name {
			return string(header.Value)
		}
	}
	return ""
}

func poll(target, key, interval, rounds string) {
	client := must(kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...),
		kgo.ConsumerGroup(target+"-polls"), kgo.ConsumeTopics(target), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted())))
	defer client.Close()
	submit(client, []byte(key), []byte("is it there?"),
		"x-delay", interval, "x-delay-target", target, "x-delay-trace", "1", "interval", interval)
	for attempt := "0"; attempt != rounds; {
		for _, record := range client.PollFetches(ctx).Records() {
			attempt = header(record, "x-delay-attempt")
			fmt.Println("round", attempt)
			if attempt != rounds {
				again(client, record)
			}
			// Only now: if we end before, it is asked again.
			must(0, client.CommitRecords(ctx, record))
		}
	}
}

func main() {
	counts := map[string]int{"send": 5, "replace": 5, "cancel": 2, "ask": 2, "poll": 4}
	if len(os.Args) < 2 || counts[os.Args[1]] == 0 || len(os.Args) != 2+counts[os.Args[1]] {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(1)
	}
	command, a := os.Args[1], os.Args[2:]
	client := must(kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...)))
	defer client.Close()
	switch command {
	case "send":
		submit(client, []byte(a[1]), []byte(a[4]), "x-delay", a[3], "x-delay-target", a[0], "x-delay-id", a[2])
	case "replace":
		submit(client, []byte(a[1]), []byte(a[4]), "x-delay", a[3], "x-delay-target", a[0], "x-delay-id", a[2], "x-delay-action", "replace")
	case "cancel":
		submit(client, []byte(a[0]), nil, "x-delay-action", "cancel", "x-delay-id", a[1])
	case "ask":
		fmt.Println(ask(a[0], a[1]))
	case "poll":
		poll(a[0], a[1], a[2], a[3])
	}
}
