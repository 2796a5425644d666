// One key over every client of Node: node twice.mjs PORT. The server's certificate is not known.
import http2 from 'node:http2';
import https from 'node:https';
import tls from 'node:tls';

process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';
const port = Number(process.argv[2]);
const body = '{"amount":7}';
const headers = { 'idempotency-key': 'k', 'content-type': 'application/json' };
const print = (name, status, text, replayed) => console.log(name, status, text, replayed === 'true' ? 'replayed' : 'ran');

// The URL has the default port, and the connection goes to ours.
const connection = (protocol) => () =>
  tls.connect({ host: '127.0.0.1', port, servername: 'pay.example.com', ALPNProtocols: [protocol], rejectUnauthorized: false });

function viaHttps(options) {
  return new Promise((ok, no) => {
    const r = https.request({ method: 'POST', path: '/payments', headers, ...options }, (resp) => {
      let text = '';
      resp.on('data', (d) => (text += d));
      resp.on('end', () => ok(print('https', resp.statusCode, text, resp.headers['idempotency-replayed'])));
    });
    r.on('error', no);
    r.end(body);
  });
}

function viaHttp2(url, options) {
  return new Promise((ok, no) => {
    const session = http2.connect(url, { rejectUnauthorized: false, ...options });
    session.on('error', no);
    const r = session.request({ ':method': 'POST', ':path': '/payments', ...headers });
    let text = '', first;
    r.on('response', (h) => (first = h));
    r.on('data', (d) => (text += d));
    r.on('end', () => {
      print('http2', first[':status'], text, first['idempotency-replayed']);
      session.close();
      ok();
    });
    r.end(body);
  });
}

async function viaFetch(url) {
  const r = await fetch(url + '/payments', { method: 'POST', body, headers });
  print('fetch', r.status, await r.text(), r.headers.get('idempotency-replayed'));
}

if (process.argv[3] === 'default') {
  await viaHttp2('https://pay.example.com', { createConnection: connection('h2') });
  await viaHttps({ host: 'pay.example.com', createConnection: connection('http/1.1') });
  await viaHttps({ host: 'PAY.example.com', port: 443, createConnection: connection('http/1.1') });
} else {
  const url = 'https://localhost:' + port;
  await viaHttp2(url);
  await viaFetch(url);
  await viaHttps({ host: 'localhost', port });
  await viaFetch('https://LOCALHOST:' + port);
}
