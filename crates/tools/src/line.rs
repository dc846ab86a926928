//! HTTP over a connection that stays open: a question and its answer.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// One request.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Names a task in an answer.
const TASK_ID: &str = "\"task_id\"";
/// Characters of an answer that an error shows.
const SHOWN: usize = 300;

/// Why a request had no answer of use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("could not connect")]
    Connect(#[source] std::io::Error),
    #[error("no HTTP request can be made of this")]
    Request(#[from] hyper::http::Error),
    #[error("the connection broke")]
    Broken(#[from] hyper::Error),
    #[error("no answer within {} s", ANSWER_MAX.as_secs())]
    Silent,
    #[error("{status}: {text}")]
    Answer { status: StatusCode, text: String },
    #[error("{} of gRPC: {}", .0.code(), .0.message())]
    Status(Box<tonic::Status>),
    #[error("a task of a batch was refused: {0}")]
    Refused(String),
    #[error("a connection ended by a mistake")]
    Died,
}

impl From<tonic::Status> for AskError {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
    /// How often the answer has to name a task.
    pub(super) tasks: u64,
}

impl Question {
    pub(super) fn get(path: &str) -> Self {
        Self { method: Method::GET, path: path.to_owned(), body: Bytes::new(), tasks: 0 }
    }

    pub(super) fn post(path: &str, body: String) -> Self {
        Self { method: Method::POST, path: path.to_owned(), body: body.into(), tasks: 0 }
    }

    pub(super) fn put(path: &str, body: String) -> Self {
        Self { method: Method::PUT, ..Self::post(path, body) }
    }

    /// The same, whose answer names so many tasks.
    pub(super) fn naming(self, tasks: u64) -> Self {
        Self { tasks, ..self }
    }
}

/// One connection.
pub(super) struct Line {
    sender: SendRequest<Full<Bytes>>,
    to: SocketAddr,
    token: Option<String>,
}

impl Line {
    pub(super) async fn open(to: SocketAddr) -> Result<Self, AskError> {
        let stream = TcpStream::connect(to).await.map_err(AskError::Connect)?;
        stream.set_nodelay(true).map_err(AskError::Connect)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // Its requests say what is wrong.
            let _ = connection.await;
        });
        Ok(Self { sender, to, token: None })
    }

    /// The same, which sends a token with each question.
    pub(super) fn with_token(self, token: Option<String>) -> Self {
        Self { token, ..self }
    }

    /// Asks, and waits for the whole answer.
    ///
    /// # Errors
    /// There is none, its status is no 2xx, or it does not name every task.
    pub(super) async fn ask(&mut self, question: Question) -> Result<Bytes, AskError> {
        let Question { method, path, body, tasks } = question;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.to.to_string())
            .header(CONTENT_TYPE, "application/json");
        let request = match &self.token {
            Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        };
        let request = request.body(Full::new(body))?;
        let asked = async {
            self.sender.ready().await?;
            let answer = self.sender.send_request(request).await?;
            let status = answer.status();
            Ok::<_, hyper::Error>((status, answer.into_body().collect().await?.to_bytes()))
        };
        let (status, body) =
            tokio::time::timeout(ANSWER_MAX, asked).await.map_err(|_| AskError::Silent)??;
        let text = String::from_utf8_lossy(&body);
        if status.is_success() && text.matches(TASK_ID).count() as u64 == tasks {
            return Ok(body);
        }
        let text = text.chars().take(SHOWN).collect();
        Err(AskError::Answer { status, text })
    }
}
