import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const number = (value) => { const bytes = Buffer.alloc(4); bytes.writeUInt32LE(value); return bytes; };
const coded = (part) => {
  const bytes = Buffer.isBuffer(part) ? part : Buffer.from(String(part));
  return Buffer.concat([number(bytes.length), bytes]);
};

function draw({ salt, stream, partition, key, epoch, born, block, kind, request, policy, first = 0 }) {
  const head = [salt, stream, partition].map(coded);
  const tail = [epoch, born, block, kind, request].map(coded);
  const text = Buffer.concat([...head, key === null ? number(2 ** 32 - 1) : coded(key), ...tail]);
  const part = createHash("sha256").update(text).digest().readUIntLE(0, 3);
  for (let arm = first, end = 0; ; arm++) {
    const share = policy.readUInt32LE(4 * arm);
    if (part < (end += share)) return { arm, probability: share / 2 ** 24 };
  }
}

const base64 = (text) => Buffer.from(text, "base64");

function choose(line, request, { salt, cell = 0 }) { // a line of the actions topic, parsed
  const key = "key_base64" in line ? base64(line.key_base64) : line.key;
  const first = cell * line.actions.length;
  const { arm, probability } = draw({ ...line, salt, key, request, policy: base64(line.policy), first });
  return { action: line.actions[arm - first], probability };
}

const line = JSON.parse(`{"type":"policy","schema":1,"stream":"banners","partition":0,"key":"fr","epoch":1,"born":0,"block":3,
  "kind":"sums","actions":["autumn","boots"],"policy":"AADAAAAAQAA="}`);
const chosen = JSON.stringify(choose(line, "r-8123", { salt: "pepper" }));
if (chosen !== '{"action":"autumn","probability":0.75}') throw new Error(chosen);

const [, ...lines] = readFileSync("choices.tsv", "utf8").trimEnd().split("\n").map((line) => line.split("\t"));
for (const [salt, stream, partition, key, epoch, born, block, kind, request, policy, arm, probability] of lines) {
  const release = { stream, partition, key: key === "-" ? null : base64(key), epoch, born, block, kind };
  const drawn = draw({ salt, ...release, request, policy: base64(policy) });
  if (drawn.arm !== Number(arm) || drawn.probability !== Number(probability)) throw new Error(request);
}
console.log(`${lines.length} draws agree`);
