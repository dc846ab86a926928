//! The same creates over gRPC: many calls at once on few connections, as clients of gRPC make them.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tonic::body::Body;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use waterclock_proto::v1::tasks_client::TasksClient;
use waterclock_proto::v1::{
    BatchCreateTasksRequest, CreateHttpTaskRequest, NewTask, Options, new_task,
};

use super::lines::Ask;
use super::{BATCH_LINES, BODY, CALL, LINES, SERVICE, far_ahead};
use crate::line::AskError;
use waterclock_engine::UnixMillis;

/// Connections. The calls that are open at once are spread over them.
const CONNECTIONS: usize = 4;

/// A connection of HTTP/2, over which any number of calls go.
#[derive(Clone)]
pub(super) struct Channel(SendRequest<Body>);

impl tower_service::Service<Request<Body>> for Channel {
    type Response = Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// What is asked, and of whom.
enum What {
    /// Whether it serves: looks at nothing.
    Health(HealthClient<Channel>),
    /// A task.
    Task(TasksClient<Channel>),
    /// The tasks of these numbers, so many at once.
    Batch(TasksClient<Channel>, (u64, u64), u64),
}

/// One call at a time.
pub(super) struct Caller {
    what: What,
    make: Make,
}

/// Makes the tasks of a load.
#[derive(Clone, Copy)]
pub(super) struct Make {
    pub(super) now: UnixMillis,
    /// They are spread over so many projects.
    pub(super) projects: u64,
}

impl Make {
    fn task(self, n: u64) -> CreateHttpTaskRequest {
        let due = far_ahead(n, self.now);
        CreateHttpTaskRequest {
            trigger_at: i64::try_from(due.0).unwrap_or(i64::MAX),
            project: super::project(n, self.projects),
            group: "bench".to_owned(),
            body: BODY.as_bytes().to_vec(),
            path: format!("{CALL}{n}"),
            options: Some(Options { named_service: SERVICE.to_owned(), ..Options::default() }),
            ..CreateHttpTaskRequest::default()
        }
    }
}

impl Ask for Caller {
    async fn ask(&mut self, n: u64) -> Result<Bytes, AskError> {
        let make = self.make;
        match &mut self.what {
            What::Health(client) => {
                client.check(HealthCheckRequest { service: String::new() }).await?;
                Ok(Bytes::new())
            }
            What::Task(client) => {
                let created = client.create_http_task(make.task(n)).await?.into_inner();
                Ok(named(&created.task_id))
            }
            What::Batch(client, (first, last), size) => {
                let from = *first + n * *size;
                let to = (*last).min(from + *size);
                let new = |n| NewTask { task: Some(new_task::Task::Http(make.task(n))) };
                let tasks: Vec<_> = (from..to).map(new).collect();
                let asked = BatchCreateTasksRequest { tasks };
                let answer = client.batch_create_tasks(asked).await?.into_inner();
                let refused = answer.tasks.iter().find_map(|task| task.problem.clone());
                if let Some(problem) = refused {
                    return Err(AskError::Refused(problem.detail));
                }
                let id = answer.tasks.into_iter().next_back().map(|task| task.task_id);
                Ok(named(&id.unwrap_or_default()))
            }
        }
    }
}

/// As HTTP has it: one kind of answer for both.
fn named(task_id: &str) -> Bytes {
    serde_json::json!({ "task_id": task_id }).to_string().into()
}

/// Connections to waterclock.
async fn open(to: SocketAddr) -> Result<Vec<Channel>, AskError> {
    let mut open = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect(to).await.map_err(AskError::Connect)?;
        stream.set_nodelay(true).map_err(AskError::Connect)?;
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Its calls say what is wrong.
            let _ = connection.await;
        });
        open.push(Channel(sender));
    }
    Ok(open)
}

/// Callers that are each answered before they ask again.
async fn callers(
    to: SocketAddr,
    count: usize,
    make: Make,
    what: impl Fn(Channel, Uri) -> What,
) -> Result<Vec<Caller>, AskError> {
    let origin: Uri = format!("http://{to}").parse().map_err(hyper::http::Error::from)?;
    let channels = open(to).await?;
    let each = |channel: &Channel| Caller { what: what(channel.clone(), origin.clone()), make };
    Ok(channels.iter().cycle().take(count).map(each).collect())
}

/// Calls that look at nothing, as many at once as for single creates.
pub(super) async fn health(to: SocketAddr) -> Result<Vec<Caller>, AskError> {
    let make = Make { now: UnixMillis(0), projects: 1 };
    callers(to, LINES, make, |channel, to| What::Health(HealthClient::with_origin(channel, to)))
        .await
}

/// Single creates.
pub(super) async fn singles(to: SocketAddr, make: Make) -> Result<Vec<Caller>, AskError> {
    callers(to, LINES, make, |channel, to| What::Task(TasksClient::with_origin(channel, to))).await
}

/// Creates in batches of so many.
pub(super) async fn batches(
    to: SocketAddr,
    make: Make,
    numbers: (u64, u64),
    size: u64,
) -> Result<Vec<Caller>, AskError> {
    let what = |channel, to| What::Batch(TasksClient::with_origin(channel, to), numbers, size);
    callers(to, BATCH_LINES, make, what).await
}
