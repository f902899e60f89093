"""Words and pairs of words for prompts."""

_CAPITALS = """
Argentina Buenos Aires|Australia Canberra|Austria Vienna|Belgium Brussels
Brazil Brasilia|Bulgaria Sofia|Canada Ottawa|Chile Santiago|China Beijing
Colombia Bogota|Croatia Zagreb|Cuba Havana|Denmark Copenhagen|Ecuador Quito
Egypt Cairo|Ethiopia Addis Ababa|Finland Helsinki|France Paris|Germany Berlin
Ghana Accra|Greece Athens|Hungary Budapest|Iceland Reykjavik|India New Delhi
Indonesia Jakarta|Iran Tehran|Iraq Baghdad|Ireland Dublin|Israel Jerusalem
Italy Rome|Jamaica Kingston|Japan Tokyo|Jordan Amman|Kenya Nairobi
Lebanon Beirut|Libya Tripoli|Malaysia Kuala Lumpur|Mexico Mexico City
Mongolia Ulaanbaatar|Morocco Rabat|Nepal Kathmandu|Netherlands Amsterdam
Nigeria Abuja|Norway Oslo|Pakistan Islamabad|Peru Lima|Philippines Manila
Poland Warsaw|Portugal Lisbon|Romania Bucharest|Russia Moscow|Senegal Dakar
Serbia Belgrade|Slovakia Bratislava|Slovenia Ljubljana|Spain Madrid
Sudan Khartoum|Sweden Stockholm|Switzerland Bern|Syria Damascus
Thailand Bangkok|Tunisia Tunis|Turkey Ankara|Uganda Kampala|Ukraine Kyiv
Uruguay Montevideo|Venezuela Caracas|Vietnam Hanoi|Zambia Lusaka
"""

_ANTONYMS = """
hot cold|big small|fast slow|up down|left right|day night|black white
young old|happy sad|rich poor|hard soft|wet dry|early late|open closed
strong weak|full empty|light dark|high low|long short|near far|loud quiet
clean dirty|thick thin|wide narrow|deep shallow|sweet sour|sharp blunt
first last|inside outside|above below|before after|true false|good bad
love hate|win lose|buy sell|push pull|start stop|arrive leave|give take
laugh cry|remember forget|accept refuse|increase decrease|alive dead
brave afraid|cheap expensive|easy difficult|friend enemy|heavy light
male female|summer winter|north south|east west|more less|many few
always never|begin end|asleep awake|raw cooked
"""

_PAST_TENSES = """
go went|come came|see saw|take took|give gave|make made|know knew|find found
think thought|tell told|feel felt|leave left|bring brought|begin began
keep kept|hold held|write wrote|stand stood|hear heard|mean meant|meet met
run ran|pay paid|sit sat|speak spoke|lead led|grow grew|lose lost|fall fell
send sent|build built|understand understood|draw drew|break broke
spend spent|rise rose|drive drove|buy bought|wear wore|choose chose
eat ate|drink drank|sing sang|swim swam|fly flew|throw threw|catch caught
teach taught|sell sold|sleep slept|win won|fight fought|forget forgot
hide hid|ride rode|steal stole|shake shook|freeze froze|swear swore
blow blew|tear tore|feed fed|seek sought|sink sank|ring rang
walk walked|ask asked|call called|open opened|look looked|play played
"""

WORDS = """
anchor apple arrow basket beacon blanket bottle branch bridge bucket butter
candle canvas carpet castle cherry circle copper corner cotton desert dragon
engine falcon feather fiddle flower forest garden guitar hammer harbor helmet
honey island jacket kettle ladder lantern lemon marble meadow mirror monkey
mountain needle orange orchid paddle palace parrot pencil pepper pillow planet
pocket pumpkin rabbit ribbon river rocket saddle salmon shadow silver spider
spoon statue summer sunset tablet temple thunder ticket timber tunnel turtle
valley velvet violin walnut whistle window winter
""".split()


def _pairs(text):
    items = [x for line in text.split("\n") for x in line.split("|") if x]
    return [tuple(item.split(" ", 1)) for item in items]


PAIRS = {
    "capitals": _pairs(_CAPITALS),
    "antonyms": _pairs(_ANTONYMS),
    "past_tenses": _pairs(_PAST_TENSES),
    "successors": [(str(n), str(n + 1)) for n in range(10, 99)],
}
