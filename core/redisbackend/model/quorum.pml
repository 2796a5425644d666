/*
 * The quorum protocol of package redisbackend: leases, and Paxos for the seal.
 *
 * Three nodes keep, for one key, an owner (the lease), the largest ballot that they promised and to
 * whom, and the value that they accepted with its (ballot, step). A client is one attempt by one
 * owner. It calls one node at a time, in any order. README.md says what is modelled and what is
 * not; ./check runs every configuration.
 */

#ifndef CLIENTS
#define CLIENTS 2
#endif
/* Which clients seal, release, begin an orphan and adopt one after they were granted: a bit each. */
#ifndef SEALERS
#define SEALERS 14
#endif
#ifndef RELEASERS
#define RELEASERS 0
#endif
#ifndef BEGINNERS
#define BEGINNERS 0
#endif
#ifndef ADOPTERS
#define ADOPTERS 0
#endif
#define SEALS(c)    ((SEALERS >> (c)) & 1)
#define RELEASES(c) ((RELEASERS >> (c)) & 1)
#define BEGINS(c)   ((BEGINNERS >> (c)) & 1)
#define ADOPTS(c)   ((ADOPTERS >> (c)) & 1)
/* Clients begin in the order of their numbers: at any time, one after the other, or after a grant. */
#ifdef INTURN
#define STARTS(c) ((done & 7) == (c) - 1)
#elif defined(AFTERGRANT)
#define STARTS(c) (started == (c) - 1 && ((c) == 1 || tokens != 0))
#else
#define STARTS(c) (started == (c) - 1)
#endif

/* Client c seals with the value c. */
#define VOID      7
#define BEGUN(c)  ((c) + 3)
#define UNSEALER  4
#define MAXBALLOT 15

/* An accepted value is one byte. The larger byte has the larger (ballot, step). */
#define PACK(b, step, v) (((b) << 4) | ((step) << 3) | (v))
#define BALLOT(a)  ((a) >> 4)
#define VALUE(a)   ((a) & 7)
#define STAMP(a)   ((a) >> 3)
#ifdef ORPHANS
#define ISSEAL(a)  (VALUE(a) >= 1 && VALUE(a) <= 3)
#define ISBEGUN(a) (VALUE(a) >= 4 && VALUE(a) <= 6)
#else
#define ISSEAL(a)  (VALUE(a) >= 1 && VALUE(a) <= 6)
#define ISBEGUN(a) false
#endif

#define MAJORITY(m) ((m) == 3 || (m) >= 5)
#define BIT(c)      (1 << (c))
#define MAX(a, b)   ((a) > (b) -> (a) : (b))
#define MIN(a, b)   ((a) < (b) -> (a) : (b))
#define MIN(a, b)   ((a) < (b) -> (a) : (b))

/* ./check switches the rules off, one at a time. */
#ifdef TRUST
#define TRUSTS(a) ((a) != 0)
#else
#define TRUSTS(a) false
#endif
#ifdef NOPREPARE
#define PREPARES false
#else
#define PREPARES true
#endif
#ifdef NOVOID
#define VOIDS false
#else
#define VOIDS true
#endif
#ifdef NOPROMISE
#define BLIND true
#else
#define BLIND false
#endif
#ifdef TWICEBEGUN
#define TWICE true
#else
#define TWICE false
#endif
#ifdef ONEBEGUN
#define BEGINSBY(m) ((m) != 0)
#else
#define BEGINSBY(m) MAJORITY(m)
#endif
#ifndef REPREPARES
/* Only a holder that can rely on its deadline prepares again, and only before the deadline. */
#ifdef LATEPREPARE
#define REPREPARES(c) true
#elif defined(ASSUMEA)
#define REPREPARES(c) (!LAPSED(c))
#else
#define REPREPARES(c) false
#endif
#endif
/* A node answers a holder that prepares again if it is still leased to the holder, or has its seal. */
#define MINE(i, o) (owner[i] == (o) || VALUE(acc[i]) == (o) || VALUE(acc[i]) == BEGUN(o))

/* ---- The nodes ---- */

byte owner[3], bal[3], by[3], acc[3];

/* The node that is called, and its answer. Both are reset when the atomic step of the call ends. */
byte node, r, rb, ra;
#define RESET d_step { node = 0; r = 0; rb = 0; ra = 0 }
#define NONE    0
#define GRANTED 1
#define SEALED  2
#define TAKEN   3
#define OK      4
#define SILENT  5
#define SILENT  5

#ifdef LATEACQUIRE
byte lateAcquires;
#endif
#ifdef RESTARTS
byte restarts;
byte forgot[3]; /* the node abstains until the lease that it forgot is over */
byte clock = 1; /* the ballot of a new key */
/* A node that restarted refuses ballots from before its start. */
#ifdef NOFLOOR
#define FLOOR 0
#else
#define FLOOR (clock - 1)
#endif
#define CLOCK clock
#else
#define CLOCK 1
#endif
#if defined(RESTARTS) && !defined(NOABSTAIN)
#define ABSTAINS(i) (forgot[i] != 0)
#else
#define ABSTAINS(i) false
#endif
/* A node promises a number once, and nothing to others while it is leased. */
#ifdef TIE
#define PROMISED(i, o, b) (bal[i] > (b))
#else
#define PROMISED(i, o, b) (bal[i] > (b) || (bal[i] == (b) && by[i] != (o)))
#endif
#define LEASED(i, o) (owner[i] != 0 && owner[i] != (o))
/* A late copy of an earlier step must not replace what the same proposer wrote in a later one. */
#ifdef STEPBACK
#define PASSED(i, at) false
#else
#define PASSED(i, at) (STAMP(acc[i]) > STAMP(at))
#endif

inline nodeAcquire(i, o) {
	d_step {
		if
		:: ABSTAINS(i) -> r = NONE
		:: else -> if
		:: ISSEAL(acc[i]) || (ISBEGUN(acc[i]) && owner[i] == 0) -> r = SEALED
		:: else -> if
		:: LEASED(i, o) -> r = TAKEN
		:: else ->
#ifdef REGRANT
			bal[i] = (bal[i] == 0 -> CLOCK : bal[i] + 1);
#else
			bal[i] = (owner[i] == o -> bal[i] : (bal[i] == 0 -> CLOCK : bal[i] + 1));
#endif
			assert(bal[i] <= MAXBALLOT);
			owner[i] = o;
			by[i] = o;
			r = GRANTED
		fi fi fi;
		rb = bal[i];
		ra = acc[i]
	}
}

/* If need is false, the node refuses. */
inline nodePrepare(i, o, b, need) {
	d_step {
		assert(b <= MAXBALLOT);
		if
		:: PROMISED(i, o, b) || LEASED(i, o) || ABSTAINS(i) || !(need) -> r = NONE
		:: else -> bal[i] = b; by[i] = o; r = OK
		fi;
		rb = bal[i];
		ra = acc[i]
	}
}

#define ENDS  0
#define KEEPS 1
#define TAKES 2
/* blind makes the node ignore its promises. */
inline nodeAccept(i, o, b, at, lease, blind) {
	d_step {
		if
		:: acc[i] == at -> r = OK
		:: else -> if
		:: ((PROMISED(i, o, b) || PASSED(i, at)) && !(blind)) || LEASED(i, o) || ABSTAINS(i) -> r = NONE
		:: else ->
			bal[i] = MAX(b, bal[i]);
			by[i] = o;
			acc[i] = at;
			owner[i] = (lease == TAKES -> o : (lease == KEEPS -> owner[i] : 0));
			r = OK
		fi fi;
		rb = bal[i];
		ra = acc[i]
	}
}

inline nodeRelease(i, o) {
	d_step {
		if
		:: owner[i] == o ->
			owner[i] = 0;
#ifndef NORAISE
			bal[i]++;
#endif
			r = OK
		:: else -> r = NONE
		fi
	}
}

/* ---- What callers were told. No node and no client acts on it. ---- */

byte started, done;
byte last;     /* the largest token granted */
int tokens;   /* all tokens granted */
byte decided;  /* the value answered, if it was not unsealed since */
#ifdef UNSEALS
bit unsealing;
byte voided;   /* the values unsealed */
#define UNSEALING unsealing
#define VOIDED    voided
#else
#define UNSEALING false
#define VOIDED    0
#endif
#ifdef ASSUMEA
byte holder;   /* the client that counts itself as holder */
byte lapsed;   /* the clients whose deadline passed */
#define LAPSED(c) (lapsed & BIT(c))
#else
#define LAPSED(c) false
#endif
#ifdef ORPHANS
byte running;  /* the client whose run was begun and has no outcome */
byte freed;    /* the clients whose Release was answered */
#endif
#ifdef RESTARTS
bit lost;      /* a node forgot what it had accepted */
#define LOST lost
#else
#define LOST false
#endif

/* A caller is answered the value v. */
inline answer(v, zombies) {
	d_step {
		assert(LOST || !((zombies) & BIT(v)));
		if
		:: VOIDED & BIT(v)
		:: else -> if
		:: decided == 0 || UNSEALING -> decided = v
		:: else -> assert(LOST || decided == v)
		fi fi
	}
}

/* A caller is granted the key. Its attempt began when floor was the largest token and before was
   decided. */
inline granted(o, t, floor, before) {
	d_step {
		assert(t > floor);
		assert(!(tokens & BIT(t)));
		tokens = tokens | BIT(t);
		last = MAX(last, t);
		if
		:: before != 0 && before == decided ->
#ifdef UNSEALS
			assert(unsealing);
			voided = voided | BIT(decided);
			decided = 0;
			unsealing = 0
#else
			assert(LOST)
#endif
		:: else
		fi;
#ifdef ASSUMEA
		assert(holder == 0);
		holder = o
#endif
	}
}

#ifdef ORPHANS
/* A caller is answered that the key is orphaned: v is BEGUN of somebody. */
inline orphaned(v, before, released) {
	d_step {
		assert(before == 0 || before != decided || UNSEALING);
		assert(!((released) & BIT((v) - 3)))
	}
}
#endif

/* ---- A late message: one copy of an accept, delivered to any node at any time ---- */

#ifdef LATEACCEPT
byte lateAt, lateBy;
bit lateSent;
#define LATE(o, at) if :: !lateSent -> lateSent = 1; lateAt = at; lateBy = o :: true fi
#else
#define LATE(o, at) skip
#endif

/* ---- A client ---- */

/* A request that is lost is a node not asked: a client may stop asking at any time. */
#define ASK(act) \
	:: atomic { (todo & 1) -> todo = todo & 6; node = 0; act; RESET } \
	:: atomic { (todo & 2) -> todo = todo & 5; node = 1; act; RESET } \
	:: atomic { (todo & 4) -> todo = todo & 3; node = 2; act; RESET }
/* The nodes are alike, so the client that starts first may ask them in order. */
#define ASKFIRST(act) \
	:: atomic { (todo & 1) && BEGINNING -> BEGIN; todo = todo & 6; node = 0; act; RESET } \
	:: atomic { (todo & 2) && BEGINNING && !(INORDER && me == 1 && (todo & 1)) -> BEGIN; todo = todo & 5; node = 1; act; RESET } \
	:: atomic { (todo & 4) && BEGINNING && !(INORDER && me == 1 && (todo & 3)) -> BEGIN; todo = todo & 3; node = 2; act; RESET }
#if defined(SPLIT) || defined(DECIDED) || defined(HALFUNSEALED)
#define INORDER false
#else
#define INORDER true
#endif
#define BEGINNING (todo != 7 || STARTS(me))
#ifdef ORPHANS
#define BEGIN d_step { if :: todo == 7 -> started++; floor = last; before = decided; zombies = VOIDED; begun = running; released = freed :: else fi }
#else
#define BEGIN d_step { if :: todo == 7 -> started++; floor = last; before = decided; zombies = VOIDED :: else fi }
#endif
#define LOSE if :: r = SILENT :: true fi
#ifdef NOEXPIRY
/* Nobody else took a lease, so each node that the holder counted accepts its seal. */
#define ACCEPTED assert(r != NONE || !(counted & BIT(node)))
#else
#define ACCEPTED skip
#endif
#define COUNT got = got | (r == OK -> BIT(node) : 0)

proctype Client(byte me) {
	byte todo = 7, got;          /* the nodes to ask, the nodes that said yes */
	byte t;                      /* the largest ballot granted; the lease's */
	byte b;                      /* the largest ballot of a sealed node; the proposer's */
	byte x, y;                   /* what sealed nodes answered; the latest of it */
	bit same, mixed, left;       /* a majority has x; grants differ; there is a leftover */
#ifdef NOEXPIRY
	byte counted;                /* the nodes whose grants were counted */
#endif
	bit again;                   /* the seal was tried under the first ballot */
	byte token;
	byte floor, before, zombies; /* last, decided and voided when the attempt began */
#ifdef ORPHANS
	byte begun, released, orphan;
#endif

	/* Acquire asks all nodes. */
	do
	ASKFIRST(nodeAcquire(node, me); LOSE; d_step {
		if
		:: r == GRANTED ->
			got = got | BIT(node);
			mixed = mixed || (t != 0 && t != rb);
			t = MAX(t, rb);
			left = left || ra != 0
		:: r == SEALED ->
			b = MAX(b, rb);
			left = 1;
			if
			:: same
			:: !same && x == 0 -> x = ra
			:: else -> if
			:: x == ra || y == ra -> same = 1; x = ra; y = 0
			:: else -> y = MIN(x, ra); x = MAX(x, ra)
			fi fi
		:: r == TAKEN -> left = left || ra != 0
		:: else
		fi })
	:: atomic { true ->
		todo = 0; y = 0;
		if
		:: MAJORITY(got) && !same && !TRUSTS(x) ->
#ifdef NOEXPIRY
			counted = got;
#endif
			x = 0; b = 0;
			if
			:: mixed && PREPARES -> goto prepare
			:: else -> goto write
			fi
		:: !MAJORITY(got) && x != 0 && !same && !TRUSTS(x) ->
			b = MAX(t, b) + 1;
			goto repair
		:: x != 0 && (same || TRUSTS(x)) -> goto sealed
		:: else -> goto stop
		fi
		}
	od;

prepare:
	atomic { todo = got; got = 0; mixed = 0 };
	do
	ASK(nodePrepare(node, me, t, owner[node] == me); LOSE; COUNT; left = left || (r == OK && ra != 0))
	:: atomic { true ->
		if
		:: MAJORITY(got) -> goto write
		:: else -> goto stop
		fi
		}
	od;

	/* The holder voids leftovers before it runs. BEGUN voids them too. */
write:
	atomic {
		todo = 7; got = 0; mixed = 0;
		if
		:: BEGINS(me) && !(left && TWICE) -> x = PACK(t, 0, BEGUN(me)); left = 0; LATE(me, x)
		:: !(BEGINS(me) && !(left && TWICE)) && left && VOIDS -> x = PACK(t, 0, VOID); left = 0; LATE(me, x)
		:: else -> left = 0; goto grant
		fi
	};
	do
	ASK(nodeAccept(node, me, t, x, KEEPS, false); LOSE; COUNT)
	:: atomic { true ->
		if
		:: BEGINSBY(got) && BEGINS(me) && VALUE(x) == VOID -> goto write
		:: BEGINSBY(got) && !(BEGINS(me) && VALUE(x) == VOID) -> goto grant
		:: else -> goto stop
		fi
		}
	od;

grant:
	atomic {
		if
		:: LAPSED(me) -> goto stop
		:: else
		fi;
		token = t;
		granted(me, t, floor, before);
#ifdef ORPHANS
		assert(begun == 0 || begun != running);
		if
		:: BEGINS(me) -> running = me
		:: else
		fi;
#endif
		todo = 0; got = 0; x = 0; floor = 0; before = 0
	}

hold:
	atomic {
#ifdef ASSUMEA
		if
		:: holder == me -> holder = 0
		:: else
		fi;
#endif
		if
		:: SEALS(me) -> goto seal
		:: RELEASES(me) -> goto release
		:: goto stop
		fi
	}

seal:
	atomic { todo = 7; got = 0; b = 0; LATE(me, PACK(t, 1, me)) }
	do
	ASK(nodeAccept(node, me, t, PACK(t, 1, me), ENDS, BLIND); ACCEPTED; LOSE; COUNT; b = (r == NONE && rb > t -> MAX(b, rb) : b))
	:: atomic { true ->
		todo = 0;
		if
		:: MAJORITY(got) ->
			/* Nobody with a later token was told that it holds the key. */
			assert(LOST || VOIDED != 0 || UNSEALING || last == token);
			answer(me, zombies);
#ifdef ORPHANS
			running = (running == me -> 0 : running);
#endif
			goto stop
		:: !MAJORITY(got) && b != 0 && !again && REPREPARES(me) ->
			again = 1; b++;
			goto reprepare
#ifdef RELEASEAFTERSEAL
		:: !MAJORITY(got) && RELEASES(me) -> goto release
#endif
		:: else -> goto stop
		fi
		}
	od;

reprepare:
	atomic { todo = 7; got = 0 }
	do
	ASK(nodePrepare(node, me, b, MINE(node, me)); LOSE; COUNT)
	:: atomic { true ->
		if
		:: MAJORITY(got) -> t = b; goto seal
		:: else -> goto stop
		fi
		}
	od;

release:
	atomic {
		todo = 7; got = 0;
#ifdef ORPHANS
		if
		:: BEGINS(me) -> running = (running == me -> 0 : running); goto unbegin
		:: else
		fi
#endif
	}
	do
	ASK(nodeRelease(node, me))
	:: atomic { true -> goto stop }
	od;

	/* Release writes VOID over BEGUN. */
unbegin:
#ifdef ORPHANS
	atomic { todo = 7; got = 0 }
	do
	ASK(nodeAccept(node, me, t, PACK(t, 1, VOID), ENDS, false); LOSE; COUNT)
	:: atomic { true ->
		if
		:: MAJORITY(got) -> freed = freed | BIT(me)
		:: else
		fi;
		goto stop
		}
	od;
#endif

sealed:
	atomic {
		same = 0; got = 0;
		if
#ifdef ORPHANS
		:: ISBEGUN(x) ->
			orphaned(VALUE(x), before, released);
			if
			:: ADOPTS(me) && orphan == 0 -> orphan = VALUE(x); b = MAX(t, b) + 1; goto repair
			:: else
			fi
#endif
		:: else -> answer(VALUE(x), zombies)
		fi;
#ifdef HEAL
		todo = 7;
		LATE(me, x)
#else
		goto stop
#endif
	}
	do
	ASK(nodeAccept(node, me, BALLOT(x), x, ENDS, false))
	:: atomic { true -> goto stop }
	od;

	/* Repair adopts the latest value that a majority knows of. */
repair:
	atomic { todo = 7; got = 0; x = 0; t = 0; left = 0; mixed = 0 }
	do
	ASK(nodePrepare(node, me, b, true); LOSE; COUNT; y = (r == OK -> MAX(y, ra) : y))
	:: atomic { true ->
		if
		:: MAJORITY(got) && y != 0 ->
#ifdef ORPHANS
			x = (orphan != 0 && VALUE(y) == orphan -> PACK(b, 0, BEGUN(me)) : PACK(b, 1, VALUE(y)));
#elif defined(HIGHEST)
			x = y;
#else
			x = PACK(b, 1, VALUE(y));
			LATE(me, x);
#endif
			y = 0;
			goto spread
		:: else -> goto stop
		fi
		}
	od;

spread:
	atomic { todo = 7; got = 0 }
	do
	ASK(nodeAccept(node, me, b, x, (VALUE(x) == BEGUN(me) -> TAKES : ENDS), false); LOSE; COUNT)
	:: atomic { true ->
		if
#ifdef ORPHANS
		:: MAJORITY(got) && VALUE(x) == BEGUN(me) -> t = b; running = 0; begun = 0; goto grant
#endif
		:: MAJORITY(got) && VALUE(x) != BEGUN(me) && VALUE(x) != VOID -> goto sealed
		:: else -> goto stop
		fi
		}
	od;

stop:
	atomic {
		todo = 0; got = 0; x = 0; y = 0; t = 0; b = 0; same = 0; mixed = 0; left = 0; again = 0;
		token = 0; floor = 0; before = 0; zombies = 0;
#ifdef NOEXPIRY
		counted = 0;
#endif
#ifdef ORPHANS
		begun = 0; released = 0; orphan = 0;
#endif
		done++
	}
}

#if defined(UNSEALS) && !defined(HALFUNSEALED)
proctype Unsealer() {
	byte todo, got, b, v;
	if
	:: atomic { decided != 0 -> v = decided; unsealing = 1; todo = 7 }
	:: atomic { (done & 7) == CLIENTS -> goto stop }
	fi;
	do
	ASK(b = MAX(b, bal[node]); got = got | BIT(node))
	:: atomic { true ->
		if
		:: MAJORITY(got) -> b++; goto prepare
		:: else -> goto stop
		fi
		}
	od;

prepare:
	atomic { todo = 7; got = 0 }
	do
	ASK(nodePrepare(node, UNSEALER, b, true); LOSE; COUNT)
	:: atomic { true ->
		if
		:: MAJORITY(got) -> LATE(UNSEALER, PACK(b, 1, VOID)); goto void
		:: else -> goto stop
		fi
		}
	od;

void:
	atomic { todo = 7; got = 0 }
	do
	ASK(nodeAccept(node, UNSEALER, b, PACK(b, 1, VOID), ENDS, false); LOSE; COUNT)
	:: atomic { true ->
		if
		:: MAJORITY(got) && decided == v && unsealing ->
			voided = voided | BIT(v);
			decided = 0;
			unsealing = 0
		:: else
		fi;
		goto stop
		}
	od;
stop:
	atomic { todo = 0; got = 0; b = 0; v = 0; done = done + 8 }
}
#define CALLERS (CLIENTS + 8)
#else
#define CALLERS CLIENTS
#endif

/* ---- What happens by itself ---- */

#ifdef NOEXPIRY
#define MAYEXPIRE(i) false
#elif defined(ASSUMEA)
#define MAYEXPIRE(i) (owner[i] != 0 && LAPSED(owner[i]))
#else
#define MAYEXPIRE(i) (owner[i] != 0)
#endif

active proctype Environment() {
	byte who;
end:
	do
	:: atomic { MAYEXPIRE(0) -> owner[0] = 0 }
	:: atomic { MAYEXPIRE(1) -> owner[1] = 0 }
	:: atomic { MAYEXPIRE(2) -> owner[2] = 0 }
#ifdef ASSUMEA
	:: atomic { started >= 1 && !LAPSED(1) -> lapsed = lapsed | BIT(1); holder = (holder == 1 -> 0 : holder) }
#if CLIENTS > 1
	:: atomic { started >= 2 && !LAPSED(2) -> lapsed = lapsed | BIT(2); holder = (holder == 2 -> 0 : holder) }
#endif
#if CLIENTS > 2
	:: atomic { started >= 3 && !LAPSED(3) -> lapsed = lapsed | BIT(3); holder = (holder == 3 -> 0 : holder) }
#endif
#endif
#ifdef LATEACCEPT
	:: atomic { lateAt != 0 ->
		if
		:: node = 0
		:: node = 1
		:: node = 2
		fi;
		nodeAccept(node, lateBy, BALLOT(lateAt), lateAt, (lateAt & 8 -> ENDS : KEEPS), false);
		lateAt = 0;
		lateBy = 0;
		RESET }
#endif
#ifdef LATEACQUIRE
	:: atomic { lateAcquires == 0 && started > 0 ->
		lateAcquires++;
		if
		:: node = 0
		:: node = 1
		:: node = 2
		fi;
		if
		:: who = 1
#if LATEACQUIRE > 1
		:: started > 1 -> who = 2
#endif
		fi;
		nodeAcquire(node, who);
		who = 0;
		RESET }
#endif
#ifdef RESTARTS
#ifdef AFTERGRANT
#define MAYRESTART (tokens != 0)
#else
#define MAYRESTART true
#endif
	:: atomic { restarts < RESTARTS && MAYRESTART ->
		restarts++;
		if
		:: node = 0
		:: node = 1
		:: node = 2
		fi;
		d_step {
			lost = lost || acc[node] != 0;
			forgot[node] = owner[node];
#ifndef NOCLOCK
			clock = MAX(clock, 1 + MAX(bal[0], MAX(bal[1], bal[2])));
#endif
			owner[node] = 0;
			bal[node] = FLOOR;
			by[node] = 0;
			acc[node] = 0
		};
		RESET }
	:: atomic { forgot[0] != 0 && LAPSED(forgot[0]) -> forgot[0] = 0 }
	:: atomic { forgot[1] != 0 && LAPSED(forgot[1]) -> forgot[1] = 0 }
	:: atomic { forgot[2] != 0 && LAPSED(forgot[2]) -> forgot[2] = 0 }
#endif
	od
}

/* When all callers are done and all leases are over, two calls without a loss give an answer. */
active proctype Reader() {
	byte k, same, hi, n, t;
	atomic {
		done == CALLERS;
		d_step {
			owner[0] = 0; owner[1] = 0; owner[2] = 0;
			do
			:: k == 2 -> break
			:: else ->
				k++;
				same = (acc[0] == acc[1] || acc[0] == acc[2] -> acc[0] : (acc[1] == acc[2] -> acc[1] : 0));
				hi = MAX(acc[0], MAX(acc[1], acc[2]));
				n = (VALUE(acc[0]) == 0 || VALUE(acc[0]) == VOID -> 1 : 0) + (VALUE(acc[1]) == 0 || VALUE(acc[1]) == VOID -> 1 : 0) + (VALUE(acc[2]) == 0 || VALUE(acc[2]) == VOID -> 1 : 0);
				t = 1 + MAX(bal[0], MAX(bal[1], bal[2]));
				if
				:: n >= 2 ->
					/* The key is free. */
					assert(decided == 0 || UNSEALING || LOST);
					assert(t > last);
#ifdef ORPHANS
					assert(running == 0);
#endif
					k = 2;
					hi = 0
				:: n < 2 && VALUE(same) != 0 && VALUE(same) != VOID ->
					hi = same;
					k = 2
				:: else ->
					acc[0] = PACK(t, 1, VALUE(hi)); acc[1] = acc[0]; acc[2] = acc[0];
					bal[0] = t; bal[1] = t; bal[2] = t;
					if
					:: VALUE(hi) == VOID -> hi = 0
					:: else -> k = 2
					fi
				fi
			od;
			if
			:: hi == 0
#ifdef ORPHANS
			:: ISBEGUN(hi) -> orphaned(VALUE(hi), decided, freed)
#endif
			:: ISSEAL(hi) -> answer(VALUE(hi), VOIDED)
			fi
		}
	}
}

init {
	atomic {
#ifdef SPLIT
		/* An owner got ballot 1 on nodes 0 and 1 and sealed node 0 only. The next got ballot 2 on
		   nodes 1 and 2 and sealed node 2 only. */
		bal[0] = 1; by[0] = 3; acc[0] = PACK(1, 1, 3);
		bal[1] = 2; by[1] = 4;
		bal[2] = 2; by[2] = 4; acc[2] = PACK(2, 1, 4);
		tokens = 6; last = 2;
#endif
#ifdef DECIDED
		/* An owner got ballot 1 on nodes 0 and 1, sealed both, and was answered. */
		bal[0] = 1; by[0] = 3; acc[0] = PACK(1, 1, 3);
		bal[1] = 1; by[1] = 3; acc[1] = PACK(1, 1, 3);
		tokens = 2; last = 1; decided = 3;
#endif
#ifdef HALFUNSEALED
		/* As above, and then Unseal prepared ballot 2 on nodes 0 and 1 and wrote VOID on node 0 only. */
		bal[0] = 2; by[0] = UNSEALER; acc[0] = PACK(2, 1, VOID);
		bal[1] = 2; by[1] = UNSEALER; acc[1] = PACK(1, 1, 3);
		tokens = 2; last = 1; decided = 3; unsealing = 1;
#endif
		run Client(1);
#if CLIENTS > 1
		run Client(2);
#endif
#if CLIENTS > 2
		run Client(3);
#endif
#if defined(UNSEALS) && !defined(HALFUNSEALED)
		run Unsealer();
#endif
	}
}
