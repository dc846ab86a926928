// Tasks of waterclock from Go, over HTTP or gRPC: one that calls a URL, one whose executor reports, and one that is cancelled. And such an
// executor: it goes on where an earlier turn came to.
package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jhump/protoreflect/v2/grpcreflect"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

const usage = `Tasks of waterclock from Go.

  go run . http TOPIC        works on the tasks for TOPIC, until it is stopped
  go run . http TOPIC URL    creates a task that calls URL, and one for TOPIC, whose executor this is; cancels a third one
  go run . grpc TOPIC [URL]  the same over gRPC

BROKERS and SERVER in the environment say where: localhost:9092, http://localhost:8080. WATERCLOCK_API__TOKEN has the token of the API,
if there is one.`

var (
	brokers = strings.Split(env("BROKERS", "localhost:9092"), ",")
	server  = env("SERVER", "http://localhost:8080")
	token   = os.Getenv("WATERCLOCK_API__TOKEN")
	// A heartbeat has to come within this time. An executor sends them at a third of it.
	period = 6 * time.Second
	// errStale: the turn is over, so its executor stops.
	errStale = errors.New("the turn is over")
	// errPasses: the same call may have another answer soon, and may be made again.
	errPasses = errors.New("try again")
)

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

// fields are a message in JSON.
type fields map[string]any

// service is what both ways have in common. Words are those of HTTP: running, finished, cancelled.
type service interface {
	createHTTP(ctx context.Context, requestID, url string, delay time.Duration) (id string, err error)
	createKafka(ctx context.Context, requestID, topic, value string) (id string, err error)
	get(ctx context.Context, id string) (status string, attempts int, err error)
	heartbeat(ctx context.Context, id, ticket, cursor string) error
	report(ctx context.Context, id, ticket, outcome, cursor string, failure error) (became string, err error)
	cancel(ctx context.Context, id string) (outcome string, err error)
}

// patient calls until there is an answer that waiting does not change. Only for what may be sent twice: all calls here may, the creates
// because they have a request id.
func patient[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		told, err := call(ctx)
		if !errors.Is(err, errPasses) {
			return told, err
		}
		select {
		case <-ctx.Done():
			return told, err
		case <-time.After(wait):
		}
	}
}

// line is a failure as an instance takes it: one line of 200 bytes at most. No failure is an empty one.
func line(failure error) string {
	if failure == nil {
		return ""
	}
	text := strings.Join(strings.Fields(failure.Error()), " ")
	return strings.ToValidUTF8(text[:min(len(text), 200)], "")
}

// overHTTP needs nothing beside Go.
type overHTTP struct{}

func (overHTTP) call(ctx context.Context, method, path string, body fields) (told fields, err error) {
	return patient(ctx, func(ctx context.Context) (fields, error) {
		request, err := http.NewRequestWithContext(ctx, method, server+path, bytes.NewReader(must(json.Marshal(body))))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/json")
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errPasses, err)
		}
		defer response.Body.Close()
		var told fields
		err = json.NewDecoder(response.Body).Decode(&told)
		switch {
		case response.StatusCode == http.StatusServiceUnavailable, response.StatusCode == http.StatusTooManyRequests,
			told["code"] == "attempt_open":
			return nil, fmt.Errorf("%w: %s", errPasses, told["code"])
		case told["code"] == "stale":
			return nil, errStale
		case response.StatusCode >= 300:
			return nil, fmt.Errorf("%s: %s", response.Status, told["detail"])
		}
		return told, err
	})
}

func (h overHTTP) create(ctx context.Context, path string, task fields) (string, error) {
	told, err := h.call(ctx, http.MethodPost, path, task)
	id, _ := told["task_id"].(string)
	return id, err
}

func (h overHTTP) createHTTP(ctx context.Context, requestID, url string, delay time.Duration) (string, error) {
	return h.create(ctx, "/v1/tasks/http", fields{
		"project": "shop", "group": "orders", "request_id": requestID, "url": url, "delay": delay.String(), "body": "{}",
		"headers": fields{"content-type": "application/json"}, "retry": fields{"count": 3, "interval": 1},
	})
}

func (h overHTTP) createKafka(ctx context.Context, requestID, topic, value string) (string, error) {
	return h.create(ctx, "/v1/tasks/kafka", fields{
		"project": "shop", "group": "imports", "request_id": requestID, "topic": topic, "value": value, "delay": "1s",
		"feedback": fields{"deadline": "1h", "heartbeat": period.String()}, "retry": fields{"count": 3},
	})
}

func (h overHTTP) get(ctx context.Context, id string) (string, int, error) {
	told, err := h.call(ctx, http.MethodGet, "/v1/tasks/"+id, nil)
	if err != nil {
		return "", 0, err
	}
	return told["task_status"].(string), int(told["attempts_total"].(float64)), nil
}

func (h overHTTP) heartbeat(ctx context.Context, id, ticket, cursor string) error {
	_, err := h.call(ctx, http.MethodPost, "/v1/tasks/"+id+"/heartbeat", fields{"ticket": ticket, "cursor": cursor})
	return err
}

func (h overHTTP) report(ctx context.Context, id, ticket, outcome, cursor string, failure error) (string, error) {
	told, err := h.call(ctx, http.MethodPost, "/v1/tasks/"+id+"/result",
		fields{"ticket": ticket, "outcome": outcome, "cursor": cursor, "error": line(failure)})
	became, _ := told["outcome"].(string)
	return became, err
}

func (h overHTTP) cancel(ctx context.Context, id string) (string, error) {
	told, err := h.call(ctx, http.MethodDelete, "/v1/tasks/"+id+"?wait=5s", nil)
	outcome, _ := told["outcome"].(string)
	return outcome, err
}

// overGRPC asks the instance what its messages look like, so this program needs no generated code. Yours may have some: docs/clients/go.md
// says how.
type overGRPC struct {
	connection *grpc.ClientConn
	methods    protoreflect.MethodDescriptors
}

func dial(ctx context.Context) overGRPC {
	address := strings.TrimPrefix(server, "http://")
	connection := must(grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials())))
	file := must(grpcreflect.NewClientAuto(ctx, connection).FileContainingSymbol("waterclock.v1.Tasks"))
	return overGRPC{connection, file.Services().ByName("Tasks").Methods()}
}

func (g overGRPC) call(ctx context.Context, method string, request fields) (told fields, err error) {
	of := g.methods.ByName(protoreflect.Name(method))
	in, out := dynamicpb.NewMessage(of.Input()), dynamicpb.NewMessage(of.Output())
	if err := protojson.Unmarshal(must(json.Marshal(request)), in); err != nil {
		return nil, err
	}
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	return patient(ctx, func(ctx context.Context) (told fields, err error) {
		switch err := g.connection.Invoke(ctx, "/waterclock.v1.Tasks/"+method, in, out); status.Code(err) {
		case codes.OK:
		case codes.Unavailable, codes.ResourceExhausted:
			return nil, fmt.Errorf("%w: %w", errPasses, err)
		case codes.Aborted: // its ErrorInfo has the reason stale
			return nil, errStale
		default:
			return nil, err
		}
		written := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}
		return told, json.Unmarshal(must(written.Marshal(out)), &told)
	})
}

// seconds are a google.protobuf.Duration in JSON.
func seconds(of time.Duration) string {
	return strconv.FormatFloat(of.Seconds(), 'f', -1, 64) + "s"
}

// word is TASK_STATUS_RUNNING as HTTP has it.
func word(of any, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(fmt.Sprint(of), prefix))
}

func (g overGRPC) create(ctx context.Context, method string, task fields) (string, error) {
	told, err := g.call(ctx, method, task)
	id, _ := told["task_id"].(string)
	return id, err
}

func (g overGRPC) createHTTP(ctx context.Context, requestID, url string, delay time.Duration) (string, error) {
	return g.create(ctx, "CreateHttpTask", fields{
		"project": "shop", "group": "orders", "request_id": requestID, "url": url,
		"body":    base64.StdEncoding.EncodeToString([]byte("{}")),
		"headers": []fields{{"name": "content-type", "value": "application/json"}},
		"retry":   fields{"count": 3, "interval": 1}, "options": fields{"delay": seconds(delay)},
	})
}

func (g overGRPC) createKafka(ctx context.Context, requestID, topic, value string) (string, error) {
	return g.create(ctx, "CreateKafkaTask", fields{
		"project": "shop", "group": "imports", "request_id": requestID, "topic": topic,
		"value": base64.StdEncoding.EncodeToString([]byte(value)), "retry": fields{"count": 3},
		"options": fields{"delay": "1s", "feedback": fields{"deadline": "3600s", "heartbeat": seconds(period)}},
	})
}

func (g overGRPC) get(ctx context.Context, id string) (string, int, error) {
	told, err := g.call(ctx, "GetTask", fields{"task_id": id})
	if err != nil {
		return "", 0, err
	}
	return word(told["task_status"], "TASK_STATUS_"), int(told["attempts_total"].(float64)), nil
}

func (g overGRPC) heartbeat(ctx context.Context, id, ticket, cursor string) error {
	_, err := g.call(ctx, "Heartbeat", fields{"task_id": id, "ticket": ticket, "cursor": cursor})
	return err
}

func (g overGRPC) report(ctx context.Context, id, ticket, outcome, cursor string, failure error) (string, error) {
	told, err := g.call(ctx, "ReportResult", fields{
		"task_id": id, "ticket": ticket, "outcome": "REPORTED_OUTCOME_" + strings.ToUpper(outcome), "cursor": cursor, "error": line(failure),
	})
	became, _ := told["outcome"].(string)
	return became, err
}

func (g overGRPC) cancel(ctx context.Context, id string) (string, error) {
	told, err := g.call(ctx, "CancelTask", fields{"task_id": id})
	return word(told["outcome"], "CANCEL_OUTCOME_"), err
}

// execute works on what is handed over, until it has finished so many tasks.
func execute(ctx context.Context, api service, topic string, tasks int) {
	consumer := must(kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(topic+"-executors"), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DisableAutoCommit(),
		// So long after an executor has died another one reads its partitions.
		kgo.SessionTimeout(10*time.Second)))
	defer consumer.Close()
	for tasks > 0 {
		fetched := consumer.PollRecords(ctx, 1)
		must(0, fetched.Err())
		for _, record := range fetched.Records() {
			headers := map[string]string{}
			for _, header := range record.Headers {
				headers[header.Key] = string(header.Value)
			}
			id, ticket, from := headers["x-delay-id"], headers["x-delay-ticket"], headers["x-delay-cursor"]
			if ticket == "" {
				fmt.Fprintf(os.Stderr, "%s/%d@%d is no task: passed over\n", record.Topic, record.Partition, record.Offset)
				must(0, consumer.CommitRecords(ctx, record))
				continue
			}
			err := api.heartbeat(ctx, id, ticket, from)
			if !errors.Is(err, errStale) {
				must(0, err)
			}
			// After the first heartbeat: then a crash before it costs nothing but time.
			must(0, consumer.CommitRecords(ctx, record))
			became := ""
			if err == nil {
				fmt.Printf("%s rows: turn %s\n", record.Value, headers["x-delay-attempt"])
				became, err = turn(ctx, api, id, ticket, string(record.Value), from)
			}
			if errors.Is(err, errStale) {
				// Another executor has it, or the task was cancelled.
				fmt.Fprintln(os.Stderr, err)
				continue
			}
			fmt.Println(must(became, err))
			if became == "finished" {
				tasks--
			}
		}
	}
}

// turn works on one task, sends heartbeats meanwhile, and reports. The work's context ends when the turn is over.
func turn(ctx context.Context, api service, id, ticket, value, from string) (became string, err error) {
	ours, stop := context.WithCancelCause(ctx)
	var cursor atomic.Value
	cursor.Store(from)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for heard := time.Now(); ; {
			select {
			case <-ours.Done():
				return
			case <-time.After(period / 3):
			}
			sent := time.Now()
			attempt, done := context.WithDeadline(ours, heard.Add(period))
			err := api.heartbeat(attempt, id, ticket, cursor.Load().(string))
			done()
			switch {
			case err == nil:
				heard = sent
			case errors.Is(err, errStale), time.Since(heard) >= period: // another executor may have it by now
				stop(errStale)
				return
			}
		}
	}()
	failure := work(ours, value, from, func(far string) { cursor.Store(far) })
	over := context.Cause(ours)
	// A heartbeat behind the result would be stale.
	stop(nil)
	<-ended
	switch {
	case failure == nil: // this counts also if the turn is over
		return api.report(ctx, id, ticket, "finished", cursor.Load().(string), nil)
	case over != nil:
		return "", over
	}
	return api.report(ctx, id, ticket, "failed", cursor.Load().(string), failure)
}

// work is what you replace: it imports so many rows. The cursor says how many are done, and an earlier turn may have done some. What this
// turn does behind its last heartbeat is done again if it is lost, so it must do no harm to do a row twice.
func work(ctx context.Context, value, from string, far func(cursor string)) error {
	rows, err := strconv.Atoi(value)
	if err != nil {
		return err
	}
	row := 0
	fmt.Sscanf(from, "row:%d", &row) // the first turn has no cursor
	fmt.Println("from row", row)
	for ; row < rows; row++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
		far(fmt.Sprintf("row:%d", row+1))
	}
	return nil
}

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 || os.Args[1] != "http" && os.Args[1] != "grpc" {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(1)
	}
	ctx, topic := context.Background(), os.Args[2]
	var api service = overHTTP{}
	if os.Args[1] == "grpc" {
		api = dial(ctx)
	}
	if len(os.Args) == 3 {
		execute(ctx, api, topic, math.MaxInt)
	}
	url, once := os.Args[3], uuid.NewString()
	called := must(api.createHTTP(ctx, once, url, 2*time.Second))
	again := must(api.createHTTP(ctx, once, url, 2*time.Second))
	fmt.Println(map[bool]string{true: "the same task", false: "two tasks"}[called == again])

	// 90 rows last longer than a heartbeat may be away.
	imported := must(api.createKafka(ctx, uuid.NewString(), topic, "90"))
	execute(ctx, api, topic, 1)

	for _, id := range []string{imported, called} {
		for {
			status, attempts, err := api.get(ctx, id)
			must(0, err)
			if status == "finished" || status == "failed" || status == "cancelled" || status == "expired" {
				fmt.Println(status, attempts)
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	later := must(api.createHTTP(ctx, uuid.NewString(), url, time.Hour))
	fmt.Println(must(api.cancel(ctx, later)))
}
