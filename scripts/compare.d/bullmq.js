// The client of BullMQ for scripts/compare: `submit` or `receive`, with the same arguments and files as clients.py.
const fs = require("fs");
const { Queue, Worker } = require("bullmq");

const [action, port, plan, file, outstanding, rate] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };
const out = fs.openSync(file, "a");
const write = (line) => fs.writeSync(out, line + "\n");
const now = () => performance.timeOrigin + performance.now();

async function submit() {
  const delays = JSON.parse(fs.readFileSync(plan));
  const queue = new Queue("compare", { connection });
  queue.on("error", () => {});
  await queue.waitUntilReady();
  let next = 0;
  const begun = now();
  const one = async () => {
    while (next < delays.length) {
      const n = next++;
      const early = Number(rate) > 0 ? begun + (n * 1000) / Number(rate) - now() : 0;
      if (early > 0) await new Promise((go) => setTimeout(go, early));
      const sent = Date.now();
      // With a job id a repeated `add` changes nothing.
      const options = { jobId: `record-${n}`, delay: delays[n], timestamp: sent };
      for (;;) {
        try {
          await queue.add("record", { n, pad: "x".repeat(200) }, options);
          break;
        } catch {
          await new Promise((again) => setTimeout(again, 50));
        }
      }
      write(`${n} ${sent + delays[n]} ${sent} ${now()}`);
    }
  };
  await Promise.all(Array.from({ length: Number(outstanding) }, one));
  process.exit(0);
}

async function receive() {
  const worker = new Worker("compare", async (job) => write(`${job.data.n} ${now()}`), { connection });
  worker.on("error", () => {});
  await worker.waitUntilReady();
  console.log("ready");
}

({ submit, receive })[action]();
