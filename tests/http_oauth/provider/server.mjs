// A certified OpenID provider for tests: PKCE is required, refresh tokens rotate, and one that is used twice revokes
// its whole family. What it is told comes as JSON in the first argument; where it is, is the first line it writes.
//
// `GET /asked` tells every request for a token that was answered: [{"grant": …, "error": …}, …].

import http from "node:http";
import { Provider } from "oidc-provider";

const told = JSON.parse(process.argv[2]);
const server = http.createServer();
await new Promise((ready) => server.listen(told.port ?? 0, "127.0.0.1", ready));
const here = `http://127.0.0.1:${server.address().port}`;
const issuer = told.issuer ?? here;

const provider = new Provider(issuer, {
  clients: told.clients,
  pkce: { required: () => true },
  rotateRefreshToken: () => true,
  issueRefreshToken: async () => true,
  ttl: { AccessToken: told.lifetime ?? 3600, RefreshToken: 86400, Grant: 86400, Session: 3600, Interaction: 600 },
  scopes: ["openid", "offline_access"],
  features: { devInteractions: { enabled: false }, revocation: { enabled: true } },
  findAccount: async (_, sub) => ({ accountId: sub, claims: async () => ({ sub }) }),
  interactions: { url: (_, interaction) => `/as/${told.user ?? "alice"}/${interaction.uid}` },
  cookies: { keys: ["tests-only"] },
});

// Whoever comes is logged in as the user this server was told of, and agrees to everything.
async function agree(request, response) {
  const { prompt, params, session } = await provider.interactionDetails(request, response);
  const accountId = session?.accountId ?? decodeURIComponent(request.url.split("/")[2]);
  if (told.refuses) {
    const refused = { error: "access_denied", error_description: "<b>the user said no</b>" };
    await provider.interactionFinished(request, response, refused, { mergeWithLastSubmission: false });
    return;
  }
  const grant = new provider.Grant({ accountId, clientId: params.client_id });
  grant.addOIDCScope("openid offline_access");
  const result = { login: { accountId }, consent: { grantId: await grant.save() } };
  await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: prompt.name === "consent" });
}

const asked = [];
function note(context, error) {
  asked.push({ grant: context.oidc?.params?.grant_type ?? null, error: error?.error ?? null });
}
provider.on("grant.success", (context) => note(context));
provider.on("grant.error", note);

// After `GET /hang` the next request for a token is held, neither read nor answered; `GET /held` is answered then.
let toHang = 0;
let tell = () => {};
const held = new Promise((resolve) => { tell = resolve; });

const answer = provider.callback();
server.on("request", (request, response) => {
  if (request.url === "/asked") {
    response.end(JSON.stringify(asked));
  } else if (request.url === "/hang") {
    toHang += 1;
    response.end("{}");
  } else if (request.url === "/held") {
    held.then(() => response.end("{}"));
  } else if (toHang > 0 && request.url === "/token") {
    toHang -= 1;
    tell();
  } else if (request.url.startsWith("/as/")) {
    agree(request, response).catch((error) => response.writeHead(500).end(String(error)));
  } else if (told.slow && request.url === "/token") {
    setTimeout(() => answer(request, response), told.slow);
  } else {
    answer(request, response);
  }
});
console.log(JSON.stringify({ here }));
