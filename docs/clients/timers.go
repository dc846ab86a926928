package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	brokers = strings.Split(env("BROKERS", "localhost:9092"), ",")
	server  = env("SERVER", "http://localhost:8080")
	intake  = env("INTAKE", "waterclock.intake")
	ctx     = context.Background()
	// All in-sync replicas acknowledge, and it is idempotent: these are its defaults.
	producer = must(kgo.NewClient(kgo.SeedBrokers(brokers...)))
)

const usage = `Timers of waterclock from Go.

  go run timers.go send TARGET KEY ID DELAY TEXT      the record arrives in TARGET after DELAY (30m, 1h30m, 90s)
  go run timers.go replace TARGET KEY ID DELAY TEXT   takes the place of the pending record of KEY and ID
  go run timers.go cancel KEY ID                      keeps it from being delivered; nobody says whether it was in time
  go run timers.go ask KEY ID                         the same, and says what became of it

The recipes of docs/cookbook.md:

  go run timers.go order TARGET ORDER DELAY           an order is made: after DELAY it is to be closed
  go run timers.go paid ORDER                         it is paid: says whether to ship it or to give the money back
  go run timers.go stock TARGET SKU ID DELAY LABEL    stock is reserved: after DELAY it is to be released
  go run timers.go longer SKU ID DELAY                the reservation lasts longer: DELAY from now
  go run timers.go labelled LABEL                     lists what is pending with this label
  go run timers.go coupon TARGET CUSTOMER COUPON ENDS SECONDS
                    reminds SECONDS before ENDS (a time as 2026-12-24T18:00:00Z); once more: the end is another one
  go run timers.go payment TARGET PAYMENT INTERVAL TRIES FINAL
                    asks for a result every INTERVAL, TRIES times at most; it is final the FINALth time
  go run timers.go retry TOPIC GIVEN_UP SECONDS TRIES RECORDS
                    consumes TOPIC; what fails is tried again after SECONDS, twice that, ..., TRIES times at most,
                    and then written to GIVEN_UP. Ends when so many RECORDS are done or given up
  go run timers.go consume TOPIC RECORDS              consumes so many records and prints them

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

// write returns when all in-sync replicas have the record.
func write(topic string, key, value []byte, headers []kgo.RecordHeader) {
	record := &kgo.Record{Topic: topic, Key: key, Value: value, Headers: headers}
	must(producer.ProduceSync(ctx, record).First())
}

func submit(key string, value []byte, namesAndValues ...string) {
	write(intake, []byte(key), value, headers(namesAndValues...))
}

func headers(namesAndValues ...string) (all []kgo.RecordHeader) {
	for i := 0; i < len(namesAndValues); i += 2 {
		all = append(all, kgo.RecordHeader{Key: namesAndValues[i], Value: []byte(namesAndValues[i+1])})
	}
	return all
}

// send makes a timer, by its id: it can be cancelled and replaced, and a second send of a pending id does nothing, so a send may be
// repeated after an error. Key and id together are its name.
func send(target, key, timer, delay, text string) {
	submit(key, []byte(text), "x-delay", delay, "x-delay-target", target, "x-delay-id", timer)
}

// replace creates it if nothing is pending under this name.
func replace(target, key, timer, delay, text string) {
	submit(key, []byte(text), "x-delay", delay, "x-delay-target", target, "x-delay-id", timer, "x-delay-action", "replace")
}

// cancel was in time if it was acknowledged 50 ms (settle) before the record was due.
func cancel(key, timer string) {
	submit(key, nil, "x-delay-action", "cancel", "x-delay-id", timer)
}

// ask cancels, and says what became of it.
func ask(key, timer string) string {
	return said(call(http.MethodDelete, path(key, timer), ""))
}

func path(key, timer string) string {
	return "/v1/timers/" + url.PathEscape(timer) + "?wait=5s&key=" + url.QueryEscape(key)
}

type answer struct {
	Outcome, Code, State, Detail string
	Timers                       []struct {
		ID, Key string
		Due     int64
	}
	Next string
}

// call asks until there is an answer. 503: the timer's lane moves from one instance to another; the answer says how long to wait. 202:
// not decided within wait, and where to ask again. 410: the instance that knew has gone. Asking twice is no mistake: the answer is the
// same.
func call(verb, path, body string) (told answer) {
	method, next, send := verb, server+path, body
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		request := must(http.NewRequest(method, next, strings.NewReader(send)))
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if errors.Is(err, syscall.ECONNREFUSED) { // nobody listens there yet
			time.Sleep(time.Second)
			continue
		}
		must(0, err)
		told = answer{}
		must(0, json.NewDecoder(response.Body).Decode(&told))
		response.Body.Close()
		switch response.StatusCode {
		case http.StatusOK, http.StatusNotFound, http.StatusConflict: // not found, conflict: its code says why nothing was done
			return told
		case http.StatusAccepted:
			method, next, send = http.MethodGet, must(response.Location()).String(), ""
		case http.StatusGone:
			method, next, send = verb, server+path, body
		case http.StatusServiceUnavailable:
			seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
			time.Sleep(time.Duration(max(seconds, 1)) * time.Second)
		default:
			must(0, fmt.Errorf("%s: %s %s", response.Status, told.Code, told.Detail))
		}
	}
	return answer{Outcome: "pending"}
}

// said is "cancelled", "delivered"; "unknown", with what it ended as if that is known: "unknown (dead, target_missing)".
func said(told answer) string {
	words := []string{told.Outcome, told.State, told.Code}
	if told.Outcome == "" {
		words = []string{told.Code, told.State}
	}
	words = slices.DeleteFunc(words, func(word string) bool { return word == "" })
	if len(words) == 1 {
		return words[0]
	}
	return words[0] + " (" + strings.Join(words[1:], ", ") + ")"
}

// attempt is how often waterclock has delivered it: x-delay-trace: 1 asks for this header.
func attempt(record *kgo.Record) int {
	for _, header := range record.Headers {
		if header.Key == "x-delay-attempt" {
			return must(strconv.Atoi(string(header.Value)))
		}
	}
	return 0
}

func own(record *kgo.Record) []kgo.RecordHeader {
	return slices.DeleteFunc(slices.Clone(record.Headers), func(header kgo.RecordHeader) bool {
		return strings.HasPrefix(header.Key, "x-delay-")
	})
}

// again submits a consumed record for its partition again. An id goes along: if we end before the offset is committed, the record is
// submitted twice. While the first one waits, the second one does nothing.
func again(record *kgo.Record, delay string) {
	all := own(record)
	for _, header := range record.Headers {
		if header.Key == "x-delay-id" {
			all = append(all, header)
		}
	}
	write(intake, record.Key, record.Value, append(all, headers(
		"x-delay", delay, "x-delay-target", record.Topic, "x-delay-partition", strconv.Itoa(int(record.Partition)),
		"x-delay-trace", "1", "x-delay-attempt", strconv.Itoa(attempt(record)))...))
}

// each consumes until so many records are finished: work says whether one is.
func each(topic string, records int, work func(*kgo.Record) bool) {
	consumer := must(kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(topic+"-worker"), kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted())))
	defer consumer.Close()
	for {
		for _, record := range consumer.PollFetches(ctx).Records() {
			if work(record) {
				records--
			}
			// Only now: if we end before, the record is consumed once more, and nothing is lost.
			must(0, consumer.CommitRecords(ctx, record))
			if records == 0 {
				return
			}
		}
	}
}

// The end of an order that nobody pays.
func order(target, order, delay string) {
	submit(order, []byte("nobody has paid"), "x-delay", delay, "x-delay-target", target, "x-delay-id", "payment")
}

func paid(order string) {
	switch outcome := ask(order, "payment"); outcome {
	case "cancelled": // it will never be closed
		fmt.Println(order + ": ship it")
	case "delivered": // it was closed a moment ago
		fmt.Println(order + ": give the money back")
	default: // pending: ask again. unknown: there is no such order, or not any more.
		must(0, errors.New(order+": "+outcome))
	}
}

func stock(target, sku, reservation, delay, label string) {
	submit(sku, []byte("release "+reservation),
		"x-delay", delay, "x-delay-target", target, "x-delay-id", reservation, "x-delay-label", label)
}

// replaced: the same record, later. not_pending (delivered): it is released.
func longer(sku, reservation, delay string) string {
	body := must(json.Marshal(map[string]string{"delay": delay}))
	return said(call(http.MethodPatch, path(sku, reservation), string(body)))
}

func labelled(label string) {
	query := url.Values{"label": {label}, "state": {"delay"}}
	for {
		told := call(http.MethodGet, "/v1/timers?"+query.Encode(), "")
		for _, timer := range told.Timers {
			left := time.Until(time.UnixMilli(timer.Due)).Seconds()
			fmt.Printf("%s of %s, due in %.0f s\n", timer.ID, timer.Key, left)
		}
		if told.Next == "" {
			return
		}
		query.Set("page", told.Next)
	}
}

// Made and moved by the same call. A time that is past is now; after its end it is a dead letter (expired), and no mail.
func coupon(target, customer, coupon, ends string, seconds int) {
	reminds := must(time.Parse(time.RFC3339, ends)).Add(-time.Duration(seconds) * time.Second)
	submit(customer, []byte(coupon+" ends at "+ends),
		"x-delay-until", reminds.Format(time.RFC3339), "x-delay-expires", ends, "x-delay-target", target,
		"x-delay-id", coupon, "x-delay-action", "replace")
}

func payment(target, payment, interval string, tries, final int) {
	submit(payment, []byte("is it final?"),
		"x-delay", interval, "x-delay-target", target, "x-delay-id", "result", "x-delay-trace", "1")
	each(target, 1, func(record *kgo.Record) bool {
		tried := attempt(record)
		switch {
		case tried >= final: // stands for a question to the payment service
			fmt.Printf("%s: final, asked %d times\n", record.Key, tried)
		case tried >= tries:
			fmt.Printf("%s: given up, asked %d times\n", record.Key, tried)
		default:
			again(record, interval)
			return false
		}
		return true
	})
}

func retry(topic, givenUp string, seconds, tries, records int) {
	each(topic, records, func(record *kgo.Record) bool {
		tried := attempt(record)
		err := work(record.Value, tried)
		switch {
		case err == nil:
			fmt.Printf("%s: done\n", record.Value)
		case tried < tries:
			again(record, fmt.Sprintf("%ds", seconds<<tried))
			fmt.Printf("%s: again\n", record.Value)
			return false
		default:
			write(givenUp, record.Key, record.Value, append(own(record), headers("why", err.Error())...))
			fmt.Printf("%s: given up\n", record.Value)
		}
		return true
	})
}

// work stands for yours. "fail 2" fails twice.
func work(value []byte, tried int) error {
	if fails, ok := bytes.CutPrefix(value, []byte("fail ")); ok && tried < must(strconv.Atoi(string(fails))) {
		return fmt.Errorf("failure %d", tried+1)
	}
	return nil
}

// What closes an order, releases stock, or mails a reminder.
func consume(topic string, records int) {
	each(topic, records, func(record *kgo.Record) bool {
		fmt.Printf("%s: %s\n", record.Key, record.Value)
		return true
	})
}

func main() {
	counts := map[string]int{
		"send": 5, "replace": 5, "cancel": 2, "ask": 2,
		"order": 3, "paid": 1, "stock": 5, "longer": 3, "labelled": 1, "coupon": 5, "payment": 5, "retry": 5, "consume": 2,
	}
	if len(os.Args) < 2 || counts[os.Args[1]] == 0 || len(os.Args) != 2+counts[os.Args[1]] {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(1)
	}
	command, a := os.Args[1], os.Args[2:]
	number := func(n int) int { return must(strconv.Atoi(a[n])) }
	switch command {
	case "send":
		send(a[0], a[1], a[2], a[3], a[4])
	case "replace":
		replace(a[0], a[1], a[2], a[3], a[4])
	case "cancel":
		cancel(a[0], a[1])
	case "ask":
		fmt.Println(ask(a[0], a[1]))
	case "order":
		order(a[0], a[1], a[2])
	case "paid":
		paid(a[0])
	case "stock":
		stock(a[0], a[1], a[2], a[3], a[4])
	case "longer":
		fmt.Println(longer(a[0], a[1], a[2]))
	case "labelled":
		labelled(a[0])
	case "coupon":
		coupon(a[0], a[1], a[2], a[3], number(4))
	case "payment":
		payment(a[0], a[1], a[2], number(3), number(4))
	case "retry":
		retry(a[0], a[1], number(2), number(3), number(4))
	case "consume":
		consume(a[0], number(1))
	}
	producer.Close()
}
